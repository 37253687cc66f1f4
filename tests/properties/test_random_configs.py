"""What holds for every config that the rules allow, drawn at random."""

import copy
import random
import tempfile

import pytest
import torch
from configs import VOCABULARY, variant_keys
from hypothesis import HealthCheck, Phase, given, note, settings
from transformers import DynamicCache

from hf_variants import VariantsConfig, VariantsForCausalLM
from tests.variants import randomise

PROMPT, LENGTH = 5, 13
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def model_of(keys):
    return randomise(VariantsForCausalLM(VariantsConfig(**keys)), seed=2).eval()


def ids_of(*shape, seed=1):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(a, b):
    scale = max(1.0, b.abs().max().item())
    assert a.isfinite().all()
    assert (a - b).abs().max().item() < 2e-5 * scale


def rope_types(config):
    return {config.rope_of(key)["rope_type"] for key in config.rope_keys}


@check
def builds_on_meta(keys):
    config = VariantsConfig(**keys)
    with torch.device("meta"):
        model = VariantsForCausalLM(config)
    real = VariantsForCausalLM(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    shapes = [{name: value.shape for name, value in made.state_dict().items()} for made in (model, real)]
    assert shapes[0] == shapes[1]


@check
def trains_one_step(keys):
    model = model_of(keys).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = ids_of(2, LENGTH)
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        # AdamW moves every weight, by decay where its gradient is zero
        assert not torch.equal(parameter, before[name]) or not before[name].any(), name


@check
@torch.no_grad()
def decodes_as_at_once(keys):
    model, ids = model_of(keys), ids_of(2, LENGTH)
    # `dynamic` keeps the frequencies of its prompt: beyond the original length decoding differs from one forward by design
    end = 8 if "dynamic" in rope_types(model.config) else LENGTH
    cache, steps = DynamicCache(config=model.config), []
    steps.append(model(ids[:, :PROMPT], past_key_values=cache, use_cache=True).logits)
    for column in range(PROMPT, end):
        steps.append(model(ids[:, column : column + 1], past_key_values=cache, use_cache=True).logits)
    for column in range(PROMPT - 1, end):
        whole = model(ids[:, : column + 1], use_cache=False).logits[:, -1]
        assert_close(torch.cat(steps, dim=1)[:, column], whole)


@check
@torch.no_grad()
def pads_change_nothing(keys):
    model, ids = model_of(keys), ids_of(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    padded = model(ids * mask, attention_mask=mask).logits
    assert_close(padded[0, 4:], model(ids[:1, 4:]).logits[0])
    assert_close(padded[1], model(ids[1:]).logits[0])
    right = model(ids.flip(1) * mask.flip(1), attention_mask=mask.flip(1)).logits
    assert_close(right[0, :-4], model(ids[:1].flip(1)[:, :-4]).logits[0])


@check
@torch.no_grad()
def packed_documents_are_separate(keys):
    model, ids = model_of(keys), ids_of(1, LENGTH)
    position_ids = torch.cat((torch.arange(4), torch.arange(LENGTH - 4))).unsqueeze(0)
    alone = torch.cat((model(ids[:, :4]).logits, model(ids[:, 4:]).logits), dim=1)
    for mask in (None, torch.ones_like(ids)):
        assert_close(model(ids, position_ids=position_ids, attention_mask=mask).logits, alone)


@check
def survives_saving(keys):
    model, ids = model_of(keys), ids_of(2, LENGTH)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        loaded = VariantsForCausalLM.from_pretrained(directory).eval()
    saved = model.state_dict()
    assert loaded.state_dict().keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())
    for (name, ours), (_, theirs) in zip(model.named_buffers(), loaded.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    with torch.no_grad():
        # equal up to rounding: grouped matrix products add in another order where a tensor lies elsewhere in memory
        assert_close(loaded(ids).logits, model(ids).logits)


@check
def backends_agree(keys):
    model, ids = model_of(keys), ids_of(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    results = []
    for backend in ("eager", "sdpa"):
        twin = copy.deepcopy(model)
        twin.set_attn_implementation(backend)
        logits = twin(ids, attention_mask=mask).logits
        (logits[mask.bool()] ** 2).mean().backward()
        results.append((logits.detach(), [parameter.grad for parameter in twin.parameters()]))
    assert_close(results[0][0][mask.bool()], results[1][0][mask.bool()])
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        if ours is not None:
            assert_close(ours, theirs)


# switches that change the loss or what a model is made of, whatever else is set; the rules refuse them elsewhere
SWITCHES = (
    *("attention_sinks", "attn_output_gate", "attn_logit_softcapping", "qk_norm", "clip_qkv", "attention_bias"),
    *("attention_out_bias", "scale_attn_by_inverse_layer_idx", "rope_interleaved", "mlp_bias", "swiglu_limit", "swiglu_alpha"),
    *("num_shared_experts", "shared_expert_gate", "routed_scaling_factor", "router_bias", "expert_bias", "expert_output_norm"),
    *("router_balance", "router_aux_loss_coef", "router_z_loss_coef", "norm_unit_offset", "norm_placement", "norm_bias"),
    *("embedding_norm", "residual_multiplier", "lm_head_bias", "final_logit_softcapping"),
    *("logits_scaling", "embedding_multiplier_scope"),
)


@check
def no_switch_is_idle(keys):
    if keys.get("sliding_window") == 1:
        return  # whoever sees itself alone weighs nothing
    config = VariantsConfig(**keys)
    model = model_of(keys).train()
    looked_up = torch.linspace(-1, 1, LENGTH * 16).reshape(1, LENGTH, 16)
    said = lambda model: torch.cat(  # noqa: E731
        (model(ids_of(2, LENGTH), labels=ids_of(2, LENGTH)).loss[None], model(inputs_embeds=looked_up).logits.flatten())
    )
    for name in random.Random(repr(keys)).sample(sorted(set(keys).intersection(SWITCHES)), 6):
        try:
            other = VariantsConfig(**{key: value for key, value in keys.items() if key != name})
        except ValueError:
            continue  # another key needs it
        if other.to_dict() == config.to_dict():
            continue  # drawn as the default
        without = VariantsForCausalLM(other)
        state = model.state_dict()
        shapes = [{key: value.shape for key, value in made.items()} for made in (without.state_dict(), state)]
        if shapes[0] != shapes[1]:
            continue
        without.load_state_dict(state)
        outputs = []
        for made in (model, without.train()):
            torch.manual_seed(0)  # a router that samples does so alike
            outputs.append(said(made))
        assert not torch.equal(*outputs), name


def run(name, keys):
    note(f"VariantsConfig(**{keys!r})")
    torch.manual_seed(0)
    CHECKS[name](keys)


# a drawn config is short enough to read as it is, and shrinking it takes minutes
PHASES = [Phase.explicit, Phase.generate]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=25, phases=PHASES, suppress_health_check=QUIET)
@given(keys=variant_keys())
def test_random_configs(name, keys):
    run(name, keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=300, phases=PHASES, suppress_health_check=QUIET)
@given(keys=variant_keys())
def test_many_random_configs(name, keys):
    run(name, keys)
