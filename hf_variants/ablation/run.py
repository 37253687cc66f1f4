"""`ablate`: recipe -> shared tokenizer -> matched variants -> runs -> table, plots and report.

    output_dir/tokenizer, data         shared by all runs
              /runs/VARIANT/seed-N     ordinary pretraining runs, each loadable
              /ablation.json, .csv     the table
              /plots/*.png, report.html

Notable here: killed at any moment, the same command goes on; more seeds or variants may be added later.
"""

from pathlib import Path

from ..training.arguments import training_arguments
from ..training.documents import read_corpus
from ..training.idle_keys import bringer, idle_tokenizer_keys
from ..training.pretraining import announce_corrupt
from ..training.processes import is_writer, print_once, together
from ..training.stages import run_stage
from ..training.tokenizer import load_tokenizer, train_tokenizer
from .planning import check_spec, drafts, plan
from .report import write_ablation_report
from .results import collect, statements, write_table
from .running import make_runs, refuse_changed


def ablate(spec, announce=print_once):
    """Run an `AblateSpec`; finished runs are not made again.

    Returns:
        dict of `results.collect`, and `report` (path).

    Raises:
        ValueError: for a recipe that cannot be run, before any run; or when a run's directory holds other settings.
    """
    check_spec(spec)
    with together():
        first = drafts(spec)[0][1]
        corpus = read_corpus(first.data)
    announce_corrupt(corpus.report, announce)
    tokenizer_path = shared_tokenizer(first, corpus, Path(spec.output_dir), spec.overwrite, announce)
    planned = plan(spec, load_tokenizer(tokenizer_path), tokenizer_path, corpus.fingerprint)
    for line in describe_plan(planned, spec):
        announce(line)
    refuse_changed(planned.runs, spec.overwrite)
    if not spec.collect_only:
        make_runs(planned.runs, spec, announce)
    results = collect(planned, spec)
    if is_writer():
        write_table(results, spec.output_dir)
        results["report"] = str(write_ablation_report(results, spec))
    for line in statements(results):
        announce(line)
    waiting = sum(run["status"] == "waiting" for run in results["runs"])
    if waiting:
        announce(f"{waiting} of {len(results['runs'])} runs are not finished; run the same command again")
    announce(f"table, plots and report: {spec.output_dir}")
    return results


def shared_tokenizer(first, corpus, root, overwrite, announce):
    """Path of the tokenizer of all runs: the given one, or one trained on the training documents, once."""
    if first.tokenizer.path is not None:
        for key, value in idle_tokenizer_keys(first).items():
            announce(f"{key}={value!r} is unused, since {bringer(first)} is given")
        return first.tokenizer.path
    settings = {"texts": corpus.fingerprint, "tokenizer": vars(first.tokenizer), "masked": first.objective == "mlm"}
    folder = root / "tokenizer"

    def work():
        announce(f"tokenizer: training a byte-level BPE of {first.tokenizer.vocab_size:,} tokens for all runs")
        with together():
            if is_writer():
                train_tokenizer(corpus.train, first.tokenizer, first.objective).save_pretrained(folder)
        return {"vocab_size": len(load_tokenizer(folder))}

    arguments = training_arguments(first)
    run_stage("tokenizer", folder, settings, work, overwrite=overwrite, announce=lambda line: None, arguments=arguments)
    return folder


def describe_plan(planned, spec):
    """Lines that say what will be run and what was made equal."""
    seeds = ", ".join(map(str, spec.seeds))
    yield f"{len(planned.variants)} variants x {len(spec.seeds)} seeds ({seeds}), equal: {spec.match.replace('_', ' ')}"
    for variant in planned.variants:
        costs = planned.costs[variant.name]
        changes = ", ".join(f"{key}={value}" for key, value in variant.changes.items()) or "the base"
        matched = "".join(f"; to match, {key}={value}" for key, value in variant.matched.items())
        yield (
            f"  {variant.name}: {changes}{matched} | {costs.parameters:,} parameters, {costs.active_parameters:,} active, "
            f"{costs.training_flops:.4g} training FLOPs in {costs.steps} steps, {costs.kv_bytes_per_token:,.0f} KV bytes/token"
        )
