"""The command line `hf-variants COMMAND`: one file per command, each a dataclass of keys and a job.

Notable here: commands import what they need when they run, so help is quick; a mistake is one red line and exit code
2.
"""


def main(arguments=None):
    """Run the command line with `arguments` (default: those of the process). Exits with 0, 2 for a mistake, 130 when
    interrupted.
    """
    from .app import run

    run(arguments)
