"""Every key of every recipe, wrong once: refused by its name before a text, a checkpoint or a folder is touched.

The data and checkpoints that the recipes name do not exist, so an error that speaks of the key was raised before they were
looked for.
"""

import dataclasses
import math
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from hf_variants import jobs
from hf_variants.training.spec_parsing import build_spec, describe_keys, starts_of

DATA, EXAMPLES = {"source": "absent.txt"}, {"source": "absent.jsonl"}
TRAINED = {"data": DATA, "model": "tiny/mla", "trainer": {"max_steps": 1}}
BASE = {"output_dir": "out", "base": TRAINED}
UNTRAINED = {"output_dir": "out", "base": {"data": DATA, "model": "tiny/mla"}}
VARIANTS = {"variants": {"relu": {"model.hidden_act": "relu"}}}
STUDIED = {**TRAINED, "data": {**DATA, "sequence_length": 64}, "model": {"preset": "tiny/mla", "max_position_embeddings": 64}}
STAGES = {"pretrain": TRAINED, **{name: {"data": DATA} for name in ("evaluate", "extend", "quantize")}}
STAGES["generate"] = {"prompts": ["x"]}
PHASE = {"name": "bridge", "reads": "images", "trains": ["bridge"]}
# job: (its spec, a recipe of it that asks for files that do not exist)
RECIPES = {
    "pretrain": ("TrainingSpec", {"output_dir": "out", **TRAINED}),
    "evaluate": ("EvaluateSpec", {"model_path": "absent", "data": DATA}),
    "generate": ("GenerateSpec", {"model_path": "absent", "prompts": ["x"]}),
    "extend": ("ExtendSpec", {"model_path": "absent", "output_dir": "out", "data": DATA}),
    "finetune": ("FinetuneSpec", {"model_path": "absent", "output_dir": "out", "method": "lora", "data": EXAMPLES}),
    "seq2seq": ("Seq2SeqSpec", {"model_path": "absent", "output_dir": "out", "data": EXAMPLES}),
    "vision_language": ("VisionLanguageSpec", {"output_dir": "out", "phases": [PHASE]}),
    "ablate": ("AblateSpec", {**BASE, **VARIANTS}),
    "extrapolate": ("ExtrapolateSpec", {**BASE, "base": STUDIED, **VARIANTS, "lengths": [64, 128]}),
    "scaling_study": (
        "ScalingStudySpec",
        {**UNTRAINED, "sizes": {"small": {"model.hidden_act": "relu"}}, "token_counts": [10_000_000]},
    ),
    "quantize": ("QuantizeSpec", {"model_path": "absent", "output_dir": "out", "data": DATA}),
    "quickstart": ("QuickstartSpec", {"output": "out", **STAGES}),
}
# an item of each list of sections, with the keys that it must have
ITEMS = {"sources": {"source": "absent.txt"}, "stages": {"length": 64, "steps": 1}, "phases": PHASE}


def spec_of(job):
    return getattr(jobs, RECIPES[job][0])


def fields_of(cls, where=""):
    """(dotted key, type) of every key, those of sections and of items of lists of sections included."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind, key = hints[field.name], where + field.name
        parts = [kind, *get_args(kind)] if get_origin(kind) in (list, Union, UnionType) else [kind]
        section = next((part for part in parts if dataclasses.is_dataclass(part)), None)
        if section is None:
            yield key, kind
        else:
            yield from fields_of(section, f"{key}[0]." if get_origin(kind) is list else f"{key}.")


def keys_where(wanted):
    return [(job, key, kind) for job in RECIPES for key, kind in fields_of(spec_of(job)) if wanted(key, kind)]


def ids(case):
    return case if isinstance(case, str) else ""


def recipe(job, key, value):
    """The recipe of a job with one dotted key set."""
    mapping = _copied(RECIPES[job][1])
    *sections, last = key.split(".")
    node = mapping
    for section in sections:
        if section.endswith("[0]"):
            node.setdefault(section[:-3], [dict(ITEMS[section[:-3]])])
            node = node[section[:-3]][0]
        else:
            node = node.setdefault(section, {})
    node[last] = value
    return mapping


def _copied(value):
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def kinds(kind):
    """The simple types that a key may have."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return {get_origin(option) or option for option in options if option is not type(None)}


def wrong_type(kind):
    return next(value for value in (7, "many", [None], True) if not fits(value, kind))


def fits(value, kind):
    return any(
        isinstance(value, option) and not (value is True and option is not bool) for option in kinds(kind) - {Literal}
    ) or (float in kinds(kind) and type(value) is int)


@pytest.mark.parametrize(("job", "key", "kind"), keys_where(lambda key, kind: True), ids=ids)
def test_a_wrong_type_and_a_misspelling(job, key, kind):
    value = wrong_type(kind)
    with pytest.raises(ValueError) as caught:
        build_spec(spec_of(job), recipe(job, key, value))
    assert str(caught.value).startswith(f"{key}={value!r}"), caught.value
    name = key.rsplit(".", 1)[-1]
    with pytest.raises(ValueError) as caught:
        build_spec(spec_of(job), recipe(job, f"{key}x", 1))
    assert f"unknown key '{key}x' (did you mean '{name}'?); known keys: " in str(caught.value)


@pytest.mark.parametrize(("job", "key", "kind"), keys_where(lambda key, kind: Literal in kinds(kind)), ids=ids)
def test_a_wrong_choice(job, key, kind):
    option = next(part for part in (kind, *get_args(kind)) if get_origin(part) is Literal)
    with pytest.raises(ValueError) as caught:
        build_spec(spec_of(job), recipe(job, key, "no such"))
    # a key that may also be null says so in the words of its type
    assert f"{key}='no such'" in str(caught.value) and all(repr(choice) in str(caught.value) for choice in get_args(option))


NUMBERS = keys_where(lambda key, kind: kinds(kind) & {int, float} or set(get_args(kind)) & {int, float})
OWN_RANGE = {("quantize", "bits"), ("quantize", "group_size")}  # a choice, and -1 for whole rows


def set_in(spec, key, value):
    *sections, last = key.split(".")
    for section in sections:
        spec = getattr(spec, section.removesuffix("[0]"))
        spec = spec[0] if section.endswith("[0]") else spec
    setattr(spec, last, value)


@pytest.mark.parametrize(("job", "key", "kind"), NUMBERS, ids=ids)
def test_a_number_out_of_range(job, key, kind, tmp_path, monkeypatch):
    """In a recipe, and in a spec that was made or changed in Python."""
    monkeypatch.chdir(tmp_path)
    listed = list in kinds(kind)
    whole = int in (*kinds(kind), *(part for option in (kind, *get_args(kind)) for part in get_args(option)))
    start = recipe(job, key, [64] if listed else 64) if "[0]" in key else RECIPES[job][1]
    for number in [-5] if whole and float not in kinds(kind) else [-5.0, math.nan, math.inf]:
        value = [number] if listed else number
        if (job, key) not in OWN_RANGE:
            with pytest.raises(ValueError, match="must "):
                build_spec(spec_of(job), recipe(job, key, value))
        spec = build_spec(spec_of(job), _copied(start))
        set_in(spec, key, value)
        with pytest.raises(ValueError) as caught:
            getattr(jobs, job)(spec, announce=lambda line: None)
        assert f"{key}={value!r}" in str(caught.value), caught.value
    assert not list(tmp_path.iterdir())


TRAINING, STUDIES = (
    ("pretrain", "extend", "finetune", "seq2seq", "vision_language"),
    ("ablate", "extrapolate", "scaling_study"),
)
SHARDED = tuple(job for job in TRAINING if job != "vision_language")
# a name that the keys of a free section do not have, as (job, section, what the section holds, words of the error)
SECTIONS = [
    *((job, "trainer", {"max_stps": 1}, "trainer.max_stps'.*did you mean 'max_steps'") for job in TRAINING),
    *((job, "generation", {"max_new_token": 1}, "generation.max_new_token'.*did you mean") for job in ("generate", "seq2seq")),
    ("pretrain", "model", {"preset": "tiny/mla", "hidden_sise": 1}, "no key 'hidden_sise' .did you mean 'hidden_size'"),
    *((job, "muon", {"ns_steps": 1}, "muon=.* has no effect with optimizer=.adamw.") for job in ("pretrain", "seq2seq")),
    ("pretrain", "samples.generation", {"max_new_token": 1}, "samples.generation.max_new_token'.*did you mean"),
    ("pretrain", "metrics", {"perplexty": {}}, "metrics.perplexty'.*did you mean 'perplexity'"),
    *((job, "distributed", {"fsdp_sise": 2}, "distributed.fsdp_sise'.*did you mean 'fsdp_size'") for job in SHARDED),
    ("extend", "options", {"beta_fst": 1}, "'beta_fst' has no effect with method='yarn' .did you mean 'beta_fast'"),
    ("finetune", "toggles", {"qk_nrm": "head"}, "toggles.qk_nrm'.*did you mean 'qk_norm'"),
    ("vision_language", "text", {"hidden_sise": 1}, "no key 'hidden_sise' .did you mean 'hidden_size'"),
    ("vision_language", "tower", {"image_sise": 8}, "no key 'image_sise' .did you mean 'image_size'"),
    ("vision_language", "bridge", {"token_compresion": "pool"}, "'token_compresion' .did you mean 'token_compression'"),
    ("seq2seq", "model", {"encoder": {"hidden_sise": 1}, "decoder": {}}, "give either model"),
    *((job, "base", {**RECIPES[job][1]["base"], "trainr": {}}, "unknown key '(base.)?trainr'") for job in STUDIES),
    *((job, "variants", {"a": {"model.hidden_sise": 1}}, "hidden_sise") for job in ("ablate", "extrapolate")),
    ("ablate", "grid", {"model.qk_norm": ["none", "head"]}, "grid"),
    ("scaling_study", "sizes", {"small": {"model.hidden_sise": 1}}, "hidden_sise"),
    ("quickstart", "pretrain", {**TRAINED, "sed": 1}, "pretrain: unknown key 'sed'.*did you mean 'seed'"),
    ("quickstart", "evaluate", {"data": DATA, "windw": 1}, "evaluate: unknown key 'windw'.*did you mean 'window'"),
    ("quickstart", "extend", {"data": DATA, "options": {"beta_fst": 1}}, "extend: .*'beta_fst' has no effect"),
    ("quickstart", "quantize", {"data": DATA, "bits": 5}, "awq: .*bits=5"),
    ("quickstart", "generate", {"prompts": ["x"], "generation": {"top_pp": 1}}, "generate: .*top_pp'.*did you mean 'top_p'"),
]  # fmt: skip


def test_every_free_section_has_a_case():
    free = {(job, key) for job, key, kind in keys_where(lambda key, kind: dict in kinds(kind))}
    assert free == {(job, key) for job, key, _, _ in SECTIONS}


@pytest.mark.parametrize(("job", "key", "section", "message"), SECTIONS, ids=ids)
def test_a_wrong_name_in_a_free_section(job, key, section, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        getattr(jobs, job)(build_spec(spec_of(job), recipe(job, key, section)), announce=lambda line: None)
    assert not list(tmp_path.iterdir())


FILES = {"source": "absent.jsonl"}
PARTS = {"sources": [{"source": "absent.jsonl"}]}
READING = ("pretrain", "seq2seq")
SMALL_PAIR = {"encoder": {"hidden_size": 16, "num_attention_heads": 2}, "decoder": {}}
# a key that another one leaves without effect, as (job, keys over its recipe, words of the error)
IDLE = [
    *(
        (job, {"data": {**FILES, "eval_source": "absent.jsonl", name: value}}, f"data.{name}={value} has no effect")
        for job in READING
        for name, value in {"eval_fraction": 0.3, "split_seed": 5}.items()
    ),
    *(
        (job, {"data": {**FILES, name: "other"}}, f"data.{name}='other' has no effect: data.source=")
        for job in READING
        for name in ("subset", "split")
    ),
    *(
        ("pretrain", {"data": {**PARTS, name: value}}, f"data.{name}={value!r} has no effect: each of data.sources")
        for name, value in {"subset": "a", "split": "b", "text_key": "body", "max_documents": 3}.items()
    ),
    ("pretrain", {"data": {**PARTS, "stopping_strategy": "all_exhausted"}}, "'all_exhausted' has no effect: no source"),
    ("pretrain", {"samples": {"steps": 5}}, "samples.steps=5 has no effect without samples.prompts"),
    ("pretrain", {"samples": {"generation": {"top_k": 5}}}, "samples.generation=.* has no effect without samples.prompts"),
    ("pretrain", {"model": {"preset": "tiny/mla", "model_type": "qwen3"}}, "model.model_type='qwen3' is not 'variants'"),
    ("seq2seq", {"tokenizer": {"mask_token": "<m>"}}, "tokenizer.mask_token='<m>' has no effect with objective='seq2seq'"),
    ("extend", {"data": {**DATA, "packing": "best_fit"}}, "data.packing='best_fit' has no effect with rows='long'"),
    ("extend", {"passkey": {"trials": 0, "lengths": [8]}}, r"passkey.lengths=\[8\] has no effect with passkey.trials=0"),
    ("extend", {"passkey": {"trials": 0, "depths": [0.5]}}, r"passkey.depths=\[0.5\] has no effect with passkey.trials=0"),
    *(
        ("vision_language", {"trainer": {name: value}}, f"trainer.{name}={value!r} does not belong here")
        for name, value in {
            "num_train_epochs": 2,
            "train_sampling_strategy": "random",
            "remove_unused_columns": True,
            "eval_strategy": "steps",
            "eval_steps": 5,
            "load_best_model_at_end": True,
        }.items()
    ),
    *(
        (job, {**more, "trainer": {"max_steps": 1, "label_smoothing_factor": 0.1}}, "label_smoothing_factor=0.1 does not")
        for job, more in (
            ("seq2seq", {}),
            ("finetune", {"task": "preference"}),
            ("pretrain", {"objective": "span_corruption", "model": SMALL_PAIR}),
        )
    ),
    ("vision_language", {"trainer": {"label_smoothing_factor": 0.1}}, "trainer.label_smoothing_factor=0.1 does not belong"),
    ("vision_language", {"bridge": {"model_type": "llava"}}, "bridge.model_type='llava' is decided by the task"),
    *((job, {"base": {**RECIPES[job][1]["base"], "data": {**STUDIED["data"], "cache_dir": "rows"}}}, "data.cache_dir='rows'")
      for job in STUDIES),
]  # fmt: skip


@pytest.mark.parametrize(("job", "keys", "message"), IDLE, ids=ids)
def test_a_key_that_another_one_leaves_without_effect(job, keys, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "absent.jsonl" in str(keys):
        (tmp_path / "absent.jsonl").write_text('{"text": "a b", "source": "a", "target": "b"}\n' * 3)
    before = set(tmp_path.iterdir())
    mapping = {**_copied(RECIPES[job][1]), **keys}
    if job == "seq2seq":
        mapping |= {"model_path": None, "model": SMALL_PAIR}
    with pytest.raises(ValueError, match=message):
        getattr(jobs, job)(build_spec(spec_of(job), mapping), announce=lambda line: None)
    assert set(tmp_path.iterdir()) == before


TRAINER_NUMBERS = {
    **{"learning_rate": -1e-3, "weight_decay": -0.1, "max_grad_norm": -1.0, "warmup_steps": -5, "adam_beta2": 1.0},
    **{"per_device_train_batch_size": 0, "per_device_eval_batch_size": 0, "gradient_accumulation_steps": 0, "max_steps": -2},
    **{"logging_steps": 0, "eval_steps": 0, "save_steps": 0, "save_total_limit": 0, "num_train_epochs": 0.0},
    **{"adam_epsilon": 0.0, "dataloader_num_workers": -1, "label_smoothing_factor": 1.0, "adam_beta1": math.nan},
}


@pytest.mark.parametrize("job", TRAINING)
@pytest.mark.parametrize("name", TRAINER_NUMBERS)
def test_a_number_that_trainer_would_fail_at_late(job, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = TRAINER_NUMBERS[name]
    with pytest.raises(ValueError) as caught:
        getattr(jobs, job)(build_spec(spec_of(job), recipe(job, f"trainer.{name}", value)), announce=lambda line: None)
    assert str(caught.value).startswith((f"trainer.{name}={value!r} must ", f"trainer.{name}={float(value)!r} must "))


@pytest.mark.parametrize("job", ["evaluate", "generate"])
def test_a_device_that_is_not_there(job):
    with pytest.raises(ValueError, match="device='cudaa' cannot be used: .*choose auto, cpu"):
        getattr(jobs, job)(build_spec(spec_of(job), recipe(job, "device", "cudaa")), announce=lambda line: None)


def test_keys_of_the_table_are_those_of_the_help():
    """The walk of this file and the one behind `--help` see the same keys."""
    for job in RECIPES:
        here = {key for key, _ in fields_of(spec_of(job)) if "[0]" not in key}
        listed = {key for key, *_ in describe_keys(spec_of(job))} - {"data.sources", "stages", "phases"}
        assert here == listed and starts_of(spec_of(job)).keys() <= here
