"""Runs a function on another library's module once that module is imported, without importing it.

Notable here: the Trainer and peft take more than a second to import and most programs need neither, yet a user may import them
before this package, after it, or after the model was made; each order must find the family registered.
"""

import sys
from importlib.abc import MetaPathFinder


class _Watcher(MetaPathFinder):
    """Finds nothing itself: it lets the other finders answer and adds the functions to what their loader runs."""

    def __init__(self):
        self.waiting = {}

    def find_spec(self, name, path=None, target=None):
        functions = self.waiting.get(name)
        if functions is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for spec in (finder.find_spec(name, path, target) for finder in others) if spec), None)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_and_run(module):
            execute(module)
            for function in self.waiting.pop(name, ()):
                function(module)

        spec.loader.exec_module = execute_and_run
        return spec


_WATCHER = _Watcher()


def when_imported(name, function):
    """Call `function(module)` after the module called `name` is imported; now, where it is already."""
    if name in sys.modules:
        function(sys.modules[name])
        return
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)
    _WATCHER.waiting.setdefault(name, []).append(function)
