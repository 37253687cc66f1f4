"""Ends of a run that the user can mend and then continue from, and what other libraries' errors say in one line."""


class RunStopped(RuntimeError):
    """Training stopped by itself; the message says why, at which step, and what the run continues from."""


def first_line(error):
    """The first line of what an exception says, or its kind where it says nothing."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
