"""The typer app, and how mistakes reach the user."""

import errno
import logging
import sys
from importlib import import_module

import typer

from ..training.errors import RunStopped, first_line
from .console import print_error

# In the order of the help.
COMMANDS = (
    "quickstart",
    "pretrain",
    "evaluate",
    "extend",
    "finetune",
    "seq2seq",
    "vision_language",
    "ablate",
    "extrapolate",
    "quantize",
    "quality_of_quantization",
    "generate",
    "convert",
    "kv_heads",
    "describe",
    "count",
    "diff",
    "families",
    "profile_cache",
    "profile_cross",
    "plan_memory",
    "stream",
    "attention",
    "images",
    "scaling",
    "tokenizer",
)


# What the machine refuses, whatever the command: a full disk, a place that may not be written to.
REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def make_app():
    """The typer app with all commands."""
    app = typer.Typer(
        name="hf-variants",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="One transformers model family with every common architecture choice as a toggle.",
    )
    for command in COMMANDS:
        import_module(f".{command}", __package__).add_to(app)
    return app


def _interrupted(arguments):
    """What an interrupted command leaves: a conversion nothing, most others what they had finished."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["convert"]:
        return "interrupted; nothing was left behind, and the same command starts anew"
    return "interrupted; run the same command again to continue"


def run(arguments=None):
    """Run the app and exit: 0, 2 with one red line for a mistake of the user, 1 for a run that stopped itself, 130 when
    interrupted."""
    # An optional dependency reports kernels that it does not find; nothing here needs them.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        code = make_app()(args=arguments, standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except ValueError as error:
        print_error(error)
        code = 2
    except RunStopped as stop:
        print_error(stop)
        code = 1
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        where = "" if error.filename is None else f": {error.filename}"
        print_error(f"{error.strerror}{where}")
        code = 1
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        print_error(f"not enough memory for what was asked ({first_line(error)}); ask for fewer or shorter rows")
        code = 1
    except Exception as error:
        # typer's usage errors know their own exit code; anything else is a defect and keeps its traceback
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message:
            print_error(message)
        code = error.exit_code
    # typer turns an interruption into this code by itself, too
    if code == 130:
        print_error(_interrupted(arguments))
    sys.exit(code or 0)
