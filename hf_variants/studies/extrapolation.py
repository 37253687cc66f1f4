"""`extrapolate`: recipe -> models trained at one length (an ablation) -> perplexity at longer ones -> table, plot, report.

    output_dir/training                            the ablation: runs, each loadable, and its own report
              /measured/VARIANT/seed-N             what was measured of each run
              /extrapolation.json, .csv, .png      tables and figure
              /report.html

Notable here: killed at any moment, the same command goes on; models that are finished are neither trained nor measured again.
"""

import hashlib
from pathlib import Path

from ..ablation.planning import drafts, run_directory
from ..ablation.run import ablate
from ..report.plot_file import check_matplotlib
from ..training.bounds import check_numbers
from ..training.documents import read_corpus
from ..training.models import open_checkpoint
from ..training.processes import is_writer, print_once, together
from ..training.stages import run_stage, stage_fingerprint
from ..training.tokenizer import load_tokenizer
from .extrapolation_measure import measure_lengths, readings_of, row_length
from .extrapolation_results import collect, in_words, write_results


def extrapolate(spec, announce=print_once):
    """Run an `ExtrapolateSpec`; finished runs and measurements are not made again.

    Returns:
        dict of `extrapolation_results.collect`, `training` (that of `ablate`), and `report` (path).

    Raises:
        ValueError: for a recipe that cannot be run, before any run; or when a run's directory holds other settings.
    """
    ablation = spec.ablation()
    with together():
        trained_length = check_extrapolation(spec, ablation)
        texts = read_corpus(drafts(ablation)[0][1].data).eval
        check_documents(texts, row_length(spec.lengths))
    training = ablate(ablation, announce)
    finished = [run for run in training["runs"] if run["status"] == "finished"]
    measured, ids = {}, None
    for run in finished:
        directory = run_directory(ablation.output_dir, run["variant"], run["seed"])
        ids = held_out(spec, texts, load_tokenizer(directory)) if ids is None else ids
        measured[run["variant"], run["seed"]] = measure_run(spec, run, directory, ids, trained_length, announce)
    results = {**collect(spec, measured, trained_length), "training": training}
    for line in in_words(results):
        announce(line)
    if is_writer() and measured:
        results["report"] = str(write_results(results, spec.output_dir))
        announce(f"tables, plot and report: {spec.output_dir}")
    return results


def check_extrapolation(spec, ablation):
    """The length that all variants are trained at. Raises ValueError for one that nothing could be learned from."""
    check_numbers(spec)
    check_methods(spec.methods)
    check_matplotlib("the figure of an extrapolation")
    lengths = spec.lengths
    ascending = all(later > earlier for earlier, later in zip(lengths, lengths[1:], strict=False))
    if not lengths or not ascending or lengths[0] < 2:
        raise ValueError(f"lengths={lengths} must ascend from at least 2 tokens")
    checked = drafts(ablation)
    trained = checked[0][1].data.sequence_length
    for variant, draft in checked:
        if draft.objective != "clm":
            raise ValueError(
                f"base.objective={draft.objective!r}: positions are compared by what is predicted next, so it must be 'clm'"
            )
        limit = draft.model["max_position_embeddings"] if "max_position_embeddings" in draft.model else None
        if limit != trained:
            raise ValueError(
                f"variant {variant.name!r}: model.max_position_embeddings={limit} must be data.sequence_length={trained}: "
                "what lies beyond the trained length is measured, and the rows of a longer learned table would hold noise"
            )
    if lengths[-1] <= trained:
        raise ValueError(f"lengths={lengths} end within data.sequence_length={trained}; give at least one that is longer")
    return trained


def check_methods(methods):
    """Refuse unknown ways of rescaling. Raises ValueError."""
    from ..context.scaling import METHODS
    from ..modeling.vocabulary import nearest

    for method in methods:
        if method == "none" or method not in METHODS:
            choices = [name for name in METHODS if name != "none"]
            raise ValueError(f"methods: {method!r} is unknown{nearest(method, choices)}; choose from {choices}")


def check_documents(texts, length):
    """Refuse held-out texts that cannot hold a row, before any training: a token is at least a byte. Raises ValueError."""
    longest = max((len(text.encode("utf-8", "surrogatepass")) for text in texts), default=0)
    if longest < length:
        raise ValueError(
            f"a held-out row has {length:,} tokens, the least common multiple of lengths, but the longest held-out document "
            f"has {longest:,} bytes; hold out longer documents (data.eval_fraction, data.eval_source) or give lengths that "
            "divide each other"
        )


def held_out(spec, texts, tokenizer):
    """ids [rows, M + 1] of at most `spec.rows` stretches of held-out documents."""
    from ..context.measuring import held_out_rows

    length = row_length(spec.lengths) + 1
    return held_out_rows(texts, tokenizer, length, spec.rows * length)


def measure_run(spec, run, directory, ids, trained_length, announce):
    """{reading: `measure_lengths`} of a finished run."""
    settings = {
        "model": stage_fingerprint(directory),
        "rows": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16],
        **{name: getattr(spec, name) for name in ("lengths", "methods", "bucket")},
    }
    target = Path(spec.output_dir) / "measured" / run["variant"] / f"seed-{run['seed']}"

    def work():
        announce(f"measuring {run['variant']}, seed {run['seed']}, on {ids.shape[0]} rows of {ids.shape[1] - 1:,} tokens")
        model, _ = open_checkpoint(directory)
        readings = readings_of(model, spec.methods, spec.lengths[-1] / trained_length)
        return {name: measure_lengths(reading, ids, spec.lengths, spec.bucket) for name, reading in readings.items()}

    return run_stage("extrapolation", target, settings, work, overwrite=True, announce=lambda line: None)
