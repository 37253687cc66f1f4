"""Ends of a run that the user can mend and then continue from: not a mistake in the recipe, and not a defect."""


class RunStopped(RuntimeError):
    """Training stopped by itself; the message says why, at which step, and what the run continues from."""
