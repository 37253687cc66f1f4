"""Work done in a second thread while the first goes on: files are written and compared while models run.

Notable here: the second thread copies and compares memory, for which Python's lock is let go, so two cores are busy; torch is
told to leave it one, and Python to hand its lock over ten times as soon as usual, since each copy waits for it. An error there
is raised where its result is asked for, and an interruption of the first thread ends it. What the first thread needs sooner
than all of it is done is handed over.
"""

import sys
import threading
from contextlib import contextmanager

import torch

# Seconds after which a thread that computes in Python lets the other one go on.
_TURN = 0.0005


class Stopped(Exception):
    """Raised inside the second thread where the first has failed meanwhile."""


class Beside:
    """What the second thread does.

    Args:
        work: called as work(running), this object; it calls running.check() now and then, which raises `Stopped` once it is
            to end, and may call running.hand(value) once.
    """

    def __init__(self, work):
        self._work, self._value, self._error, self._stop = work, None, None, threading.Event()
        self._handed, self._ready = None, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self):
        """What the work returned, once it is done; raises what it raised."""
        self._thread.join()
        self.raise_error()
        return self._value

    def hand(self, value):
        """Inside the work: give `value` to the first thread, and return it."""
        self._handed = value
        self._ready.set()
        return value

    def handed(self):
        """What the work handed over, once it has; raises what it has raised by then."""
        self._ready.wait()
        self.raise_error()
        return self._handed

    def raise_error(self):
        """Raise what the work raised, if it has failed by now."""
        if self._error is not None:
            raise self._error

    def stop(self):
        """Have it end, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def check(self):
        """Inside the work: raise `Stopped` where the first thread has ended."""
        if self._stop.is_set():
            raise Stopped

    def _run(self):
        try:
            self._value = self._work(self)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()


@contextmanager
def beside(work):
    """Yields `work` under way (`Beside`); on leaving it has ended."""
    threads, turn = torch.get_num_threads(), sys.getswitchinterval()
    sys.setswitchinterval(min(turn, _TURN))
    if threads > 1:
        torch.set_num_threads(threads - 1)
    running = Beside(work)
    try:
        yield running
    finally:
        running.stop()
        sys.setswitchinterval(turn)
        if threads > 1:
            torch.set_num_threads(threads)
