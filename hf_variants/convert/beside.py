"""Work done in a second thread while the first goes on: files are written and compared while models run.

Notable here: the second thread copies and compares memory, for which Python's lock is let go, so two cores are busy; torch is
told to leave it one. An error there is raised where its result is asked for, and an interruption of the first thread ends it.
"""

import threading
from contextlib import contextmanager

import torch


class Stopped(Exception):
    """Raised inside the second thread where the first has failed meanwhile."""


class Beside:
    """What the second thread does.

    Args:
        work: called as work(check); it calls check() now and then, which raises `Stopped` once it is to end.
    """

    def __init__(self, work):
        self._work, self._value, self._error, self._stop = work, None, None, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self):
        """What the work returned, once it is done; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

    def stop(self):
        """Have it end, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def _check(self):
        if self._stop.is_set():
            raise Stopped

    def _run(self):
        try:
            self._value = self._work(self._check)
        except BaseException as error:
            self._error = error


@contextmanager
def beside(work):
    """Yields `work` under way (`Beside`); on leaving it has ended."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(threads - 1)
    running = Beside(work)
    try:
        yield running
    finally:
        running.stop()
        if threads > 1:
            torch.set_num_threads(threads)
