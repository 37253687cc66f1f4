"""What came out: a row per variant with mean, interval, difference and verdict, and the files that hold it.

Notable here: nothing is averaged over what did not finish; how many seeds finished and how many diverged stands in every row.
"""

import csv
import json
import os
from dataclasses import asdict
from pathlib import Path

from ..training.stages import read_json
from .matching import MEASURED
from .running import outcome_of
from .statistics import compare, holm, interval, verdict

COLUMNS = (
    *("variant", "against", "changes", "matched", "seeds", "diverged", "mean_loss", "half_width", "deviation"),
    *("difference", "difference_half_width", "p_value", "corrected_p_value", "verdict"),
    *("parameters", "active_parameters", "flops_per_token", "kv_bytes_per_token", "steps", "training_flops"),
    *("budget_difference", "tokens_per_second", "expert_load_min", "expert_load_max"),
)


def collect(plan, spec):
    """dict of plain values: `rows` (one per variant, `COLUMNS`), `runs`, `curves`, `budget`, `confidence`, `comparisons`."""
    outcomes = {(run.variant, run.seed): outcome_of(run) for run in plan.runs}
    finished = {key: value["result"] for key, value in outcomes.items() if value["status"] == "finished"}
    losses = {variant.name: {} for variant in plan.variants}
    for (name, seed), result in finished.items():
        losses[name][seed] = result["eval_loss"]
    differences = [
        None if variant.against is None else compare(losses[variant.name], losses[variant.against], spec.confidence)
        for variant in plan.variants
    ]
    corrected = holm([difference and difference.p_value for difference in differences])
    rows = [
        _row(variant, plan, spec, losses[variant.name], difference, p, outcomes, finished)
        for variant, difference, p in zip(plan.variants, differences, corrected, strict=True)
    ]
    return {
        "rows": rows,
        "runs": [{"variant": name, "seed": seed, **_plain(value)} for (name, seed), value in outcomes.items()],
        "curves": {variant.name: _curve(variant.name, plan.runs) for variant in plan.variants},
        "budget": spec.match,
        "confidence": spec.confidence,
        "comparisons": sum(p is not None for p in corrected),
    }


def write_table(results, folder):
    """Write ablation.json and ablation.csv; returns their paths."""
    paths = [Path(folder) / "ablation.json", Path(folder) / "ablation.csv"]
    for path, write in zip(paths, (_write_json, _write_csv), strict=True):
        partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
        with partial.open("w", encoding="utf-8", newline="") as stream:
            write(results, stream)
        os.replace(partial, path)
    return paths


def statements(results):
    """A sentence per variant that says what the seeds tell; p is corrected for the number of comparisons."""
    lines = []
    for row in results["rows"]:
        count = f"{row['seeds']} seed{'s' if row['seeds'] != 1 else ''}"
        if not row["seeds"]:
            lines.append(f"{row['variant']}: no finished run ({row['diverged']} diverged)")
            continue
        mean = f"{row['variant']}: {row['mean_loss']:.4f}" + _around(row["half_width"]) + f" over {count}"
        mean += f", {row['diverged']} diverged" if row["diverged"] else ""
        if row["expert_load_max"] is not None:
            mean += f", expert load {row['expert_load_min']:.2f} to {row['expert_load_max']:.2f} (1 is even)"
        if row["difference"] is None:
            lines.append(mean)
            continue
        against = f"{row['difference']:+.4f}" + _around(row["difference_half_width"]) + f" against {row['against']}"
        judged = {"one seed": "one seed tells no noise"}.get(row["verdict"], row["verdict"])
        chance = "" if row["corrected_p_value"] is None else f" (p = {row['corrected_p_value']:.2g} after correction)"
        lines.append(f"{mean}; {against}: {judged}{chance}")
    return lines


def _around(half_width):
    return "" if half_width is None else f" ± {half_width:.4f}"


def _row(variant, plan, spec, losses, difference, corrected, outcomes, finished):
    own = interval(list(losses.values()), spec.confidence) if losses else None
    costs, base = plan.costs[variant.name], plan.costs[plan.variants[0].name]
    measured = MEASURED.get(spec.match)
    mine = [result for (name, _), result in finished.items() if name == variant.name]
    speeds = [result["tokens_per_second"] for result in mine if result.get("tokens_per_second")]
    diverged = sum(value["status"] == "diverged" for (name, _), value in outcomes.items() if name == variant.name)
    pair = difference.interval if difference else None
    judged = "" if variant.against is None else verdict(difference, corrected, spec.confidence) if losses else "diverged"
    if diverged and variant.against is not None and not losses:
        judged = "diverged"
    return {
        "variant": variant.name,
        "against": variant.against,
        "changes": variant.changes,
        "matched": variant.matched,
        "seeds": len(losses),
        "diverged": diverged,
        "mean_loss": own and own.mean,
        "half_width": own and own.half_width,
        "deviation": own and own.deviation,
        "difference": pair and pair.mean,
        "difference_half_width": pair and pair.half_width,
        "p_value": difference and difference.p_value,
        "corrected_p_value": corrected,
        "verdict": judged,
        **{name: value for name, value in asdict(costs).items() if name in COLUMNS},
        "budget_difference": None if measured is None else getattr(costs, measured) / getattr(base, measured) - 1,
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
        **_loads([run for run in plan.runs if run.variant == variant.name and (run.variant, run.seed) in finished]),
    }


def _loads(runs):
    """Smallest and largest load of an expert, relative to even use, when training ended: means over the runs."""
    last = [[line for line in _log(run) if "expert_load_max" in line][-1:] for run in runs]
    lines = [line for found in last for line in found]
    return {name: sum(line[name] for line in lines) / len(lines) if lines else None for name in COLUMNS[-2:]}


def _log(run):
    """The lines that a run logged; none where it has not ended."""
    return read_json(run.directory / "training_log.json") or []


def _curve(name, runs):
    """[(step, mean, lowest, highest held-out loss)] over the runs of a variant that logged the step."""
    by_step = {}
    for run in runs:
        if run.variant != name:
            continue
        own = {line["step"]: line["eval_loss"] for line in _log(run) if line.get("eval_loss") is not None}
        for step, loss in own.items():
            by_step.setdefault(step, []).append(loss)
    return [(step, sum(found) / len(found), min(found), max(found)) for step, found in sorted(by_step.items())]


def _plain(outcome):
    if outcome["status"] != "finished":
        return {"status": outcome["status"], "reason": outcome.get("reason")}
    return {"status": "finished", **outcome["result"]}


def _write_json(results, stream):
    json.dump(results, stream, indent=2)


def _write_csv(results, stream):
    writer = csv.DictWriter(stream, COLUMNS)
    writer.writeheader()
    for row in results["rows"]:
        writer.writerow({name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()})
