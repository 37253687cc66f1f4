"""Equal budgets are equal in the models that are built, not only in the plan; what cannot be matched is refused."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_variants.ablation import AblateSpec
from hf_variants.ablation.matching import matched_width
from hf_variants.ablation.planning import check_spec, plan
from hf_variants.jobs import specs as jobs
from hf_variants.training import load_spec
from hf_variants.training.models import build_config
from tests.ablation.tiny import spec_of
from tests.tokenizers_for_tests import byte_level_bpe

RECIPES = [Path("recipes/ablate.yaml"), *sorted(Path("recipes/ablations").glob("*.yaml"))]
RECIPES = [path for path in RECIPES if path.stem != "base"]
MLA = {
    "model.attention_type": "mla",
    "model.num_key_value_heads": None,
    "model.head_dim": None,
    "model.kv_lora_rank": 16,
    "model.qk_nope_head_dim": 8,
    "model.qk_rope_head_dim": 4,
    "model.v_head_dim": 8,
}
KINDS = {"GQA": {"model.num_key_value_heads": 2}, "MQA": {"model.num_key_value_heads": 1}, "MLA": MLA}


def planned(spec):
    check_spec(spec)
    return plan(spec, byte_level_bpe(), "tokenizer", {"train": "a", "eval": "b"})


def built(spec, found):
    """{variant: (model, spec of its run)}."""
    models = {}
    for run in found.runs[: len(found.variants)]:
        config = build_config(run.spec.model, byte_level_bpe())
        models[run.variant] = (AutoModelForCausalLM.from_config(config), run.spec)
    return models


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_ablations_match_their_budget(path):
    spec = load_spec(AblateSpec, path)
    assert jobs.AblateSpec is AblateSpec
    found = planned(spec)
    with torch.device("meta"):
        models = built(spec, found)
    base = next(iter(models.values()))[0].num_parameters()
    for name, (model, run) in models.items():
        assert model.num_parameters() == found.costs[name].parameters
        if spec.match == "parameters":
            assert model.num_parameters() == pytest.approx(base, rel=spec.tolerance)
        if spec.match == "flops":
            assert run.trainer["max_steps"] * found.costs[name].flops_per_token == pytest.approx(
                150 * found.costs[spec.base_name].flops_per_token, rel=spec.tolerance
            )
    assert len(found.runs) == len(spec.seeds) * len(found.variants)


def test_equal_kv_bytes_are_equal_in_the_caches_of_the_models(tmp_path):
    spec = spec_of(tmp_path, variants=KINDS, match="kv_bytes", match_multiple=2, tolerance=0.0)
    found = planned(spec)
    sizes = {}
    for name, (model, _) in built(spec, found).items():
        ids = torch.arange(3, 15).view(1, -1)
        cache = model.eval()(ids, use_cache=True).past_key_values
        tensors = [tensor for layer in cache.layers for tensor in vars(layer).values() if isinstance(tensor, torch.Tensor)]
        sizes[name] = sum(tensor.nbytes for tensor in tensors if tensor.is_floating_point())
    assert len(set(sizes.values())) == 1, sizes
    matched = {variant.name: variant.matched for variant in found.variants}
    assert matched["MHA" if "MHA" in matched else "base"] == {} and matched["MQA"] == {"model.head_dim": 32}
    assert list(matched["MLA"]) == ["model.kv_lora_rank"]


def test_equal_flops_change_the_steps_alone(tmp_path):
    spec = spec_of(tmp_path, variants=KINDS, match="flops", base={"trainer": {"max_steps": 400}})
    found = planned(spec)
    assert [variant.matched for variant in found.variants][0] == {}
    target = found.costs["base"].training_flops
    for variant in found.variants[1:]:
        assert list(variant.matched) == ["trainer.max_steps"]
        assert found.costs[variant.name].training_flops == pytest.approx(target, rel=1 / 300)
        assert variant.keys["model"]["intermediate_size"] == 48


def test_active_parameters(tmp_path):
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    spec = spec_of(tmp_path, variants={"experts": {"model": experts}}, match="active_parameters", match_multiple=1)
    found = planned(spec)
    base, other = found.costs["base"], found.costs["experts"]
    assert (
        other.active_parameters == pytest.approx(base.active_parameters, rel=0.01) and other.parameters > 1.5 * base.parameters
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"match": "parameters", "tolerance": 0.0, "match_multiple": 40}, "more than tolerance=0.0; lower match_multiple"),
        ({"match": "parameters", "variants": {"wide": {"model.intermediate_size": 64}}}, "changes nothing but model.inter"),
        ({"match": "none", "match_by": "head_dim"}, "match_by='head_dim' has no effect with match='none'"),
        ({"match": "flops", "match_by": "head_dim"}, "equal FLOPs are reached by trainer.max_steps"),
        (
            {"match": "kv_bytes", "match_by": "intermediate_size"},
            "variant 'MQA' cannot be matched by model.intermediate_size: no value reaches",
        ),
        ({"match": "parameters", "variants": {"deep": {"model.num_hidden_layers": 12}}}, "more than twice"),
        ({"seeds": []}, "seeds=.* must be at least one"),
        ({"seeds": [1, 1]}, "none of them twice"),
        ({"confidence": 95.0}, "confidence=95.0 must lie between 0 and 1"),
        ({"launcher": "srun x"}, "must hold {recipe}"),
        ({"parallel": 2}, "parallel=2 needs a launcher"),
    ],
)
def test_what_cannot_be_matched_is_refused(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        planned(spec_of(tmp_path, **keys))


def test_the_nearest_width_is_found():
    for target in (10, 55, 1000, 1001, 1009):
        found = matched_width(lambda width: 7 + 3 * width, target, 4)
        assert found % 4 == 0
        assert abs(7 + 3 * found - target) == min(abs(7 + 3 * width - target) for width in range(4, 2000, 4))
