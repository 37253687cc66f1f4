"""Runs a function once another library's module is imported, without importing it.

Notable here: torch and the Auto classes take seconds to import, the Trainer and peft one more each, and most programs need
only some of them; yet a user may import them before this package, after it, or after the model was made, and each order must
find the family registered. Importing the package therefore imports none of them.
"""

import sys
from importlib.abc import MetaPathFinder
from threading import Lock, local


class _Running(local):
    """How many modules of the watched packages this thread is executing at the moment."""

    depth = 0


class _Watcher(MetaPathFinder):
    """Finds nothing itself: it lets the other finders answer and adds the functions to what their loader runs."""

    def __init__(self):
        self.waiting = {}
        self.settling = []
        self.running, self.lock = _Running(), Lock()

    def find_spec(self, name, path=None, target=None):
        counted = any(name.partition(".")[0] in packages for _, packages, _ in self.settling)
        if name not in self.waiting and not counted:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for spec in (finder.find_spec(name, path, target) for finder in others) if spec), None)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_and_run(module):
            self.running.depth += counted
            try:
                execute(module)
            finally:
                self.running.depth -= counted
            for function in self.waiting.pop(name, ()):
                function(module)
            self.run_settled()

        spec.loader.exec_module = execute_and_run
        return spec

    def run_settled(self):
        """Call what waits for a module that is there by now, unless a module of its packages is half executed."""
        if self.running.depth:
            return
        with self.lock:
            ready = [entry for entry in self.settling if not sys.modules.keys().isdisjoint(entry[0])]
            self.settling = [entry for entry in self.settling if entry not in ready]
        for _, _, function in ready:
            function()


_WATCHER = _Watcher()


def _watch():
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)


def when_imported(name, function):
    """Call `function(module)` after the module called `name` is imported; now, where it is already."""
    if name in sys.modules:
        function(sys.modules[name])
        return
    _watch()
    _WATCHER.waiting.setdefault(name, []).append(function)


def when_settled(names, packages, function):
    """Call `function()` once any module of `names` is imported and no module of `packages` is only half executed.

    For a function that itself imports from `packages`: called from the middle of one of their modules, it would find others
    of them unfinished. Called now where a module of `names` is there already.
    """
    if not sys.modules.keys().isdisjoint(names):
        function()
        return
    _watch()
    _WATCHER.settling.append((tuple(names), frozenset(packages), function))
