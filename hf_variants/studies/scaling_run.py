"""`scaling study`: recipe -> shared tokenizer -> runs -> table -> law and figure.

    output_dir/tokenizer, data                    shared by all runs
              /runs/SIZE/seed-N/D-tokens          ordinary pretraining runs, each loadable
              /runs.csv                           what `scaling fit` reads
              /law.json, law.png                  the law with its intervals, and the figure

Notable here: killed at any moment, the same command goes on; more sizes, token counts or seeds may be added later.
"""

import csv
import os
import time
from pathlib import Path

from ..ablation.run import shared_tokenizer
from ..ablation.running import make_run, outcome_of, refuse_changed
from ..report.output_file import partial_path
from ..training.documents import read_corpus
from ..training.pretraining import announce_corrupt
from ..training.processes import gathered, is_writer, print_once, together
from ..training.tokenizer import load_tokenizer
from .handing_on import drop_other_checkpoints, hand_on
from .scaling_plan import drafts, parameters_of, plan_study

COLUMNS = ("size", "seed", "parameters", "tokens", "loss", "flops", "total_parameters", "non_embedding_parameters", "steps")


def scaling_study(spec, announce=print_once, fit=None):
    """Run a `ScalingStudySpec`; finished runs are not made again.

    Args:
        fit: called with the runs and `spec.bootstrap`, for a caller that shows progress; None means `scaling.fit_law`.

    Returns:
        dict: `runs` (one dict per finished run, `COLUMNS`), `table` (path), `diverged` (list of directories), and where
        there are runs enough for a fit, `law` (`FittedLaw.as_dict`), `law_file` and `plot` (paths).

    Raises:
        ValueError: for a recipe that cannot be run, before any run; or when a run's directory holds other settings.
    """
    with together():
        first = drafts(spec)[0][1]
        corpus = read_corpus(first.data)
    announce_corrupt(corpus.report, announce)
    tokenizer_path = shared_tokenizer(first, corpus, Path(spec.output_dir), spec.overwrite, announce)
    runs = plan_study(spec, load_tokenizer(tokenizer_path), tokenizer_path, corpus.fingerprint)
    refuse_changed(runs, spec.overwrite)
    for line in describe_study(runs, spec):
        announce(line)
    make_all(runs, announce)
    rows = [_row(run, outcome["result"], spec.count) for run in runs if (outcome := outcome_of(run))["status"] == "finished"]
    table = Path(spec.output_dir) / "runs.csv"
    if is_writer():
        write_runs(rows, table)
    announce(f"{len(rows)} runs: {table}")
    diverged = [str(run.directory) for run in runs if outcome_of(run)["status"] == "diverged"]
    for directory in diverged:
        announce(f"diverged, and left out of the table: {directory}")
    with together():
        fitted = fit_rows(table, spec, announce, fit) if is_writer() else None
    fitted = gathered(fitted)[0]
    return {"runs": rows, "table": str(table), "diverged": diverged, **fitted}


def describe_study(runs, spec):
    """Lines that say what will be run."""
    trained = sum(run.flops for run in runs)
    sizes, counts = {run.variant for run in runs}, {run.tokens for run in runs}
    yield (
        f"{len(runs)} runs: {len(sizes)} sizes x {len(counts)} token counts x {len(spec.seeds)} seeds; {trained:.3g} training "
        "FLOPs, less what longer runs take over from shorter ones"
    )
    for name in dict.fromkeys(run.variant for run in runs):
        own = [run for run in runs if run.variant == name and run.seed == spec.seeds[0]]
        counts = ", ".join(f"{run.tokens:,} ({run.tokens / parameters_of(run, spec.count):.3g} per parameter)" for run in own)
        yield f"  {name}: {own[0].total:,} parameters, {own[0].non_embedding:,} without embeddings; tokens {counts}"


def make_all(runs, announce):
    """Make the runs that are not finished, each from what a shorter one of its size and seed left."""
    began, made = time.perf_counter(), 0
    for number, run in enumerate(runs, start=1):
        if outcome_of(run)["status"] in ("finished", "diverged"):
            continue
        announce(f"run {number} of {len(runs)}: {run.variant}, {run.tokens:,} tokens, seed {run.seed}")
        shorter = [o for o in runs if (o.variant, o.seed) == (run.variant, run.seed) and o.tokens < run.tokens]
        step = hand_on(run, shorter)
        if step is not None:
            announce(f"  starts from step {step} of {run.steps}, which a shorter run made already")
        make_run(run, announce)
        drop_other_checkpoints(run)
        made += 1
        announce(f"  {time.perf_counter() - began:.0f} s for {made} runs so far")


def write_runs(rows, path):
    """Write runs.csv, whole or not at all; returns the path."""
    path = Path(path)
    partial = partial_path(path)
    with partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, path)
    return path


def fit_rows(table, spec, announce, fit=None):
    """{"law", "law_file", "plot"} of the runs in a table; {} with the reason said where they do not allow a fit."""
    from ..scaling import fit_law, read_runs
    from ..scaling.fit import check_runs
    from ..scaling.law_files import write_law
    from ..scaling.plots import plot_fit

    try:
        points = read_runs(table)
        check_runs(points)
    except ValueError as error:
        announce(f"no law is fitted: {error}")
        return {}
    announce(f"fitting a law to {len(points)} runs, and to {spec.bootstrap} resamples of them")
    fitted = (fit or fit_law)(points, bootstrap=spec.bootstrap)
    law_file = write_law(fitted, Path(table).with_name("law.json"))
    plot = plot_fit(fitted, points, Path(table).with_name("law.png"))
    for warning in fitted.warnings:
        announce(f"note: {warning}")
    return {"law": fitted.as_dict(), "law_file": str(law_file), "plot": str(plot)}


def _row(run, result, count):
    return {
        "size": run.variant,
        "seed": run.seed,
        "parameters": parameters_of(run, count),
        "tokens": run.tokens,
        "loss": result["eval_loss"],
        "flops": run.flops,
        "total_parameters": run.total,
        "non_embedding_parameters": run.non_embedding,
        "steps": run.steps,
    }
