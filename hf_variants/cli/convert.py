"""`hf-variants convert`: a checkpoint of a native type to the family, or back, proven equal before it is kept."""

from typing import Annotated

import typer

from .console import console, show_numbers


def add_to(app):
    app.command("convert")(convert)


def convert(
    src: Annotated[str, typer.Argument(help="Folder or Hub id; with --verify and no DST, the converted folder.")],
    dst: Annotated[str | None, typer.Argument(help="Folder to write; with --verify, the converted folder.")] = None,
    to: Annotated[str | None, typer.Option(help="variants or native; default: the kind that SRC is not.")] = None,
    family: Annotated[str | None, typer.Option(help="Native type to write; default: where SRC came from.")] = None,
    dtype: Annotated[str | None, typer.Option(help="dtype of the result; default: that of SRC.")] = None,
    gguf_file: Annotated[str | None, typer.Option(help="Name of a GGUF file in SRC.")] = None,
    dequantize: Annotated[bool, typer.Option(help="Unpack quantized weights, which are refused otherwise.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id.")] = None,
    max_shard_size: Annotated[str | None, typer.Option(help="Such as 2GB; default: as SRC, at most 5GB.")] = None,
    verify: Annotated[bool, typer.Option(help="Prove an existing converted folder again; write nothing.")] = False,
):
    """Convert a checkpoint between its native type and the family, and prove the two equal: weights bitwise, every layer,
    logits and, where they fit, gradients. Nothing is written where the proof fails, and there is no switch to skip it.
    """
    from ..convert import convert_checkpoint, verify_checkpoint

    writing = {"to": to, "family": family, "dtype": dtype, "gguf_file": gguf_file, "revision": revision}
    writing |= {"max_shard_size": max_shard_size}
    with _bar() as progress:
        if verify:
            _refuse_with_verify({**writing, "dequantize": dequantize or None})
            report = verify_checkpoint(src if dst is None else dst, None if dst is None else src, progress=progress)
        elif dst is None:
            raise ValueError("convert needs two names: SRC and the folder DST to write (or --verify and a converted folder)")
        else:
            report = convert_checkpoint(src, dst, dequantize=dequantize, progress=progress, **writing)
    show_numbers("verified" if verify else "converted", summary(report))
    for text in report["untrained"]:
        console.print(f"training: {text}", markup=False, soft_wrap=True)
    if not verify:
        for label in ("kept", "left"):
            if report[label]:
                console.print(f"{label}: {', '.join(report[label])}", markup=False, soft_wrap=True)


def summary(report):
    """The numbers of a report that fit on a screen."""
    from ..convert.conversion_report import worst_layer

    proof, (worst, gap) = report["proof"], worst_layer(report)
    return {
        "from": f"{report['classes'][0]} ({report['source']['name']})",
        "to": f"{report['classes'][1]}, {report['parameters']:,} parameters, {report['dtype']}",
        "weights": f"all {proof['weights']} tensors bitwise equal, both ways",
        "logits": f"max difference {proof['logits']['difference']:.2g} on {proof['tokens'][0]} x {proof['tokens'][1]} tokens",
        "layers": f"max difference {gap:.2g}, after layer {worst} of {len(proof['layers'])}",
        "gradients": f"max difference {proof['gradients']:.2g}, relative"
        if proof["gradients"] is not None
        else f"not compared: {proof['gradients_left_out']}",
    }


def _refuse_with_verify(options):
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} say what to write, but --verify only reads; leave them out")


class _bar:
    """A bar per phase of the work, told by calls progress(what, done, total)."""

    def __enter__(self):
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        from .console import errors

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress, self._tasks = Progress(*columns, console=errors), {}
        self._progress.start()
        return self._tell

    def __exit__(self, *failure):
        self._progress.stop()

    def _tell(self, what, done, total):
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)
