"""Imports hf_variants with sockets closed; reports what came with it and the time beyond transformers and torch."""

import json
import socket
import sys
import time
from pathlib import Path

attempts = []


def refuse(*args, **kwargs):
    attempts.append(str(args))
    raise OSError("no network here")


def main():
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: F401

    before = set(sys.modules)
    socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
    start = time.perf_counter()
    import hf_variants  # noqa: F401

    spent = time.perf_counter() - start
    new = sorted({name.split(".")[0] for name in set(sys.modules) - before})
    loaded = sorted(name for name in sys.modules if name.startswith("hf_variants"))
    Path(sys.argv[2]).write_text(json.dumps({"ms": spent * 1e3, "new": new, "rooms": loaded, "attempts": attempts}))


if __name__ == "__main__":
    main()
