"""`hf-variants quickstart`: text -> model -> longer context -> 4 bits -> samples -> report, each stage done once.

    output/pretrained  evaluation.json        a small model of the family, trained from nothing
          /extended                           its context x4 with YaRN, fine-tuned
          /bf16 /awq /rtn                     the extended model in three formats, each loadable with from_pretrained
          /comparison /samples                what was measured on them
          /report.html                        everything on one page

Notable here: nothing but the jobs of the other commands, run in a row; killed at any point, it continues where it
stopped.
"""

import time
from pathlib import Path

from ..context.extend import check_request
from ..training.documents import documents_of
from ..training.pretraining import pretrain
from ..training.processes import print_once, refuse_several_processes
from ..training.spec_parsing import build_spec, read_recipe, starts_of
from ..training.specs import TrainingSpec
from ..training.stages import read_json, run_stage, stage_fingerprint
from .compare import compare_checkpoints, save_in_bfloat16
from .evaluation import check_evaluation, evaluate
from .extension import extend
from .generation import DEFAULTS, check_generation, continue_prompts
from .quantization import check_quantization, quantize, rounding_beside
from .quickstart_report import write_quickstart_report
from .specs import EvaluateSpec, ExtendSpec, GenerateSpec, QuantizeSpec

REPOSITORY = Path(__file__).resolve().parents[2]


def quickstart(spec, announce=print_once):
    """Run a `QuickstartSpec`.

    Returns:
        dict with the results of every stage: pretrain, evaluate, extend, quantize, comparison, samples, report (path).

    Raises:
        ValueError: for a spec that cannot be run, before any work.
    """
    refuse_several_processes("quickstart")
    began = time.perf_counter()
    root = Path(spec.output)
    specs = stage_specs(spec)
    check_stages(specs)
    results = {"pretrain": pretrain(specs["pretrain"], announce)}
    results["training_log"] = read_json(root / "pretrained" / "training_log.json")
    results["evaluate"] = _evaluate(spec, specs["evaluate"], announce)
    results["extend"] = extend(specs["extend"], announce)
    results["bf16"] = _bfloat16(spec, announce)
    results["quantize"] = {method: quantize(specs[method], announce) for method in ("awq", "rtn")}
    results["comparison"] = _comparison(spec, specs["evaluate"], results, announce)
    results["samples"] = _samples(spec, specs["generate"], announce)
    results["report"] = str(write_quickstart_report(root / "report.html", specs, results))
    announce(f"quickstart: {time.perf_counter() - began:.0f} s; the report is {results['report']}")
    return results


def stage_specs(spec):
    """{stage: its spec} with the paths that chain them filled in.

    Raises:
        ValueError: for an unknown key of any of them.
    """
    root = Path(spec.output)
    pretrained, extended = str(root / "pretrained"), str(root / "extended")
    paths = {"model_path": extended, "overwrite": spec.overwrite}
    awq = _spec(QuantizeSpec, "quantize", spec.quantize, **paths, output_dir=str(root / "awq"), method="awq")
    return {
        "pretrain": _spec(TrainingSpec, "pretrain", spec.pretrain, output_dir=pretrained, overwrite=spec.overwrite),
        "evaluate": _spec(EvaluateSpec, "evaluate", spec.evaluate, model_path=pretrained, output=None),
        "extend": _spec(
            ExtendSpec, "extend", spec.extend, model_path=pretrained, output_dir=extended, overwrite=spec.overwrite
        ),
        "awq": awq,
        "rtn": rounding_beside(awq, str(root / "rtn")),
        "generate": _spec(GenerateSpec, "generate", spec.generate, model_path=extended, output=None),
    }


def check_stages(specs):
    """Refuse a wrong key of a late stage before the first one starts; the first checks itself. Raises ValueError."""
    checks = {"evaluate": check_evaluation, "extend": check_request, "awq": check_quantization, "rtn": check_quantization}
    for name, check in {**checks, "generate": check_generation}.items():
        try:
            check(specs[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _spec(cls, name, section, **paths):
    """A stage's spec: its recipe, over that the keys of the section, over that the paths."""
    section = dict(section)
    config = section.pop("config", None)
    keys = _merge(read_recipe(_find(config)) if config else {}, section, starts_of(cls))
    try:
        spec = build_spec(cls, {**keys, **paths})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    data = getattr(spec, "data", None)
    if data is not None:
        data.source = str(_find(data.source))
    return spec


def _find(path):
    """A relative path as seen from here, or else from the repository, so that the job can be started anywhere."""
    shipped = REPOSITORY / path
    return shipped if not Path(path).exists() and shipped.exists() else path


def _merge(base, over, starts=None):
    merged = dict(base)
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(name), str) and name in (starts or {}):
            merged[name] = {starts[name]: merged[name]}
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merge(merged[name], value) if both else value
    return merged


def _plain(spec, *skip):
    return {name: value for name, value in vars(spec).items() if name not in ("data", "output", *skip)}


def _evaluate(spec, stage, announce):
    root = Path(spec.output)
    settings = {**_plain(stage), "model_path_fingerprint": stage_fingerprint(stage.model_path)}
    work = lambda: evaluate(stage, announce)  # noqa: E731
    return run_stage("evaluate", root / "evaluation", settings, work, overwrite=True, announce=announce)


def _bfloat16(spec, announce):
    root = Path(spec.output)
    settings = {"model_path_fingerprint": stage_fingerprint(root / "extended")}
    work = lambda: {"bytes": save_in_bfloat16(str(root / "extended"), str(root / "bf16"))}  # noqa: E731
    return run_stage("bf16", root / "bf16", settings, work, overwrite=spec.overwrite, announce=announce)


def _comparison(spec, stage, results, announce):
    root = Path(spec.output)
    paths = {"bf16": root / "bf16", "RTN 4-bit": root / "rtn", "AWQ 4-bit": root / "awq"}
    window = results["extend"]["context_after"]
    settings = {name: stage_fingerprint(path) for name, path in paths.items()}
    settings.update(window=window, max_tokens=stage.max_tokens)

    def work():
        records = compare_checkpoints(paths, documents_of(stage.data, stage.part), window, stage.max_tokens)
        for record in records:
            announce(
                f"{record['name']}: perplexity {record['perplexity']:.3f}, {record['bytes'] / 1e6:.2f} MB, "
                f"{record['tokens_per_second']:.0f} tokens/s"
            )
        return records

    return run_stage("comparison", root / "comparison", settings, work, overwrite=True, announce=announce)


def _samples(spec, stage, announce):
    from ..training.models import open_checkpoint

    root = Path(spec.output)
    names = ("pretrained", "extended", "bf16", "rtn", "awq")
    options = {**DEFAULTS, **stage.generation}
    settings = {**_plain(stage, "model_path"), **{name: stage_fingerprint(root / name) for name in names}}

    def work():
        records = []
        for name in names:
            model, tokenizer = open_checkpoint(root / name)
            texts = continue_prompts(model, tokenizer, stage.prompts, options, stage.seed)
            for prompt, text in zip(stage.prompts, texts, strict=True):
                records.append({"source": name, "prompt": prompt, "text": text})
                announce(f"{name}: {prompt}|{text!r}")
        return records

    return run_stage("samples", root / "samples", settings, work, overwrite=True, announce=announce)
