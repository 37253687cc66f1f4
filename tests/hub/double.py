"""A double of the Hub on loopback: the endpoints that pushing and pulling models use, kept in memory.

    with HubDouble() as hub:
        environment = hub.environment(home)     # for a process that talks to it
        hub.repos["me/model"].files()           # {path: bytes} of the main branch

It answers as huggingface_hub's client expects, so it proves the client's side: what is uploaded, and that it loads again.
A private repo needs the token. Large files go by LFS; Xet must be switched off.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

USER, TOKEN = "me", "hf_test"
LFS_ENDINGS = (".safetensors", ".bin", ".pt", ".model")


class Repo:
    """Branches of commits; a commit is {path: bytes}."""

    def __init__(self, name, private):
        self.name, self.private = name, private
        self.commits, self.branches, self.messages = {}, {}, []
        self.commit("main", {}, "initial commit")

    def commit(self, branch, files, message):
        text = f"{self.name}{branch}{len(self.commits)}{message}"
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        self.messages.append(message)
        return commit

    def resolve(self, revision):
        """The commit behind a branch or commit, or None."""
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None

    def files(self, revision="main"):
        return self.commits[self.resolve(revision)]


class HubDouble:
    """Context manager that serves `repos` from a free port of 127.0.0.1."""

    def __init__(self):
        self.repos, self.objects, self.requests = {}, {}, []
        hub = self

        class Handler(HubHandler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home, token=TOKEN):
        """Variables for a process that talks to this double and caches under `home`."""
        given = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        given |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return given | ({"HF_TOKEN": token} if token else {})


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None
    ROUTES = [
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate_yaml"),
        ("POST", r"/api/models/(\w+/[\w.\-]+)/preupload/(.+)", "preupload"),
        ("POST", r"/api/models/(\w+/[\w.\-]+)/commit/(.+)", "commit"),
        ("POST", r"/api/models/(\w+/[\w.\-]+)/branch/(.+)", "branch"),
        ("GET", r"/api/models/(\w+/[\w.\-]+)/tree/([^/]+)(?:/(.+))?", "tree"),
        ("GET", r"/api/models/(\w+/[\w.\-]+)(?:/revision/(.+))?", "info"),
        ("POST", r"/(\w+/[\w.\-]+)\.git/info/lfs/objects/batch", "lfs_batch"),
        ("PUT", r"/lfs/(\w+)", "lfs_put"),
        ("GET", r"/(\w+/[\w.\-]+)/resolve/([^/]+)/(.+)", "resolve"),
        ("HEAD", r"/(\w+/[\w.\-]+)/resolve/([^/]+)/(.+)", "resolve"),
    ]

    def handle_one(self):
        path = urlsplit(self.path).path
        self.body = self.read_body()
        self.hub.requests.append(f"{self.command} {path}")
        for method, pattern, name in self.ROUTES:
            found = re.fullmatch(pattern, path)
            if method == self.command and found:
                return getattr(self, f"on_{name}")(*(part and unquote(part) for part in found.groups()))
        return self.answer({"error": f"no such endpoint: {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def log_message(self, *args):
        pass

    def read_body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, code):
        return self.answer({"error": code}, 404, X_Error_Code=code, X_Error_Message=code)

    @property
    def is_owner(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def find(self, name):
        repo = self.hub.repos.get(name)
        return None if repo is None or (repo.private and not self.is_owner) else repo

    # ---- endpoints ----
    def on_whoami(self):
        return self.answer({"name": USER, "type": "user", "orgs": []} if self.is_owner else {}, 200 if self.is_owner else 401)

    def on_create(self):
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if name in self.hub.repos:
            return self.answer({"error": "exists", "url": f"{self.hub.url}/{name}"}, 409)
        self.hub.repos[name] = Repo(name, asked.get("private") or asked.get("visibility") == "private")
        return self.answer({"url": f"{self.hub.url}/{name}", "id": name, "name": name})

    def on_validate_yaml(self):
        return self.answer({"errors": [], "warnings": []})

    def on_preupload(self, name, revision):
        files = [
            {"path": path, "uploadMode": "lfs" if path.endswith(LFS_ENDINGS) else "regular", "shouldIgnore": False}
            for path in (file["path"] for file in json.loads(self.body)["files"])
        ]
        return self.answer({"files": files}) if self.find(name) else self.fail("RepoNotFound")

    def on_lfs_batch(self, name):
        objects = [
            {**item, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{item['oid']}", "header": {}}}}
            for item in json.loads(self.body)["objects"]
        ]
        return self.answer({"transfer": "basic", "objects": objects})

    def on_lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.answer({"error": "hash differs"}, 400)
        self.hub.objects[oid] = self.body
        return self.answer({})

    def on_commit(self, name, branch):
        repo, files, message = self.find(name), None, ""
        files = dict(repo.files(branch))
        for line in filter(None, self.body.splitlines()):
            entry = json.loads(line)
            key, value = entry["key"], entry["value"]
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif key == "deletedFile":
                files.pop(value["path"])
        commit = repo.commit(branch, files, message)
        return self.answer({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "success": True})

    def on_branch(self, name, branch):
        repo = self.find(name)
        if branch in repo.branches:
            return self.answer({"error": "exists"}, 409)
        start = json.loads(self.body or b"{}").get("startingPoint") or "main"
        repo.branches[branch] = repo.resolve(start)
        return self.answer({})

    def on_info(self, name, revision):
        repo = self.find(name)
        commit = repo and repo.resolve(revision or "main")
        if commit is None:
            return self.fail("RevisionNotFound" if repo else "RepoNotFound")
        siblings = [{"rfilename": path} for path in repo.commits[commit]]
        return self.answer(
            {"id": name, "modelId": name, "sha": commit, "private": repo.private, "siblings": siblings, "tags": []}
        )

    def on_tree(self, name, revision, folder):
        repo = self.find(name)
        commit = repo and repo.resolve(revision)
        if commit is None:
            return self.fail("RevisionNotFound" if repo else "RepoNotFound")
        prefix = f"{folder}/" if folder else ""
        found = {path: body for path, body in repo.commits[commit].items() if path.startswith(prefix)}
        if folder and not found:
            return self.fail("EntryNotFound")
        return self.answer([{"type": "file", "path": p, "size": len(b), "oid": etag_of(b)} for p, b in found.items()])

    def on_resolve(self, name, revision, path):
        repo = self.find(name)
        commit = repo and repo.resolve(revision)
        if commit is None:
            return self.fail("RevisionNotFound" if repo else "RepoNotFound")
        content = repo.commits[commit].get(path)
        if content is None:
            return self.answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        etag = f'"{etag_of(content)}"'
        return self.answer(content, X_Repo_Commit=commit, ETag=etag, X_Linked_Etag=etag, X_Linked_Size=len(content))


def etag_of(content):
    return hashlib.sha256(content).hexdigest()
