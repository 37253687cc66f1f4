"""Models in memory that are no longer what their config builds, and what wraps a model: refused by name, never converted into
something that computes otherwise; the caller's model is left as it is.
"""

import copy

import encoder_cases
import native_cases
import pytest
import torch
from native_cases import native_model
from transformers import LlamaForCausalLM

from hf_variants.convert import convert_checkpoint, find_family, from_native, to_native
from hf_variants.convert.same_build import refuse_other_build
from hf_variants.convert.skeletons import skeleton


def _llama(**changes):
    return native_model("llama", "plain", num_hidden_layers=1, **changes)


def _epsilon(model):
    model.config.rms_norm_eps = 0.5


def _stretched(model):
    model.config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}


def _base(model):
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 5e5}


def _activation(model):
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def _quantized(model):
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)


class Doubling(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


class Twice(torch.nn.Linear):
    def forward(self, states):
        return 2 * super().forward(states)


class Plain(LlamaForCausalLM):
    def summary(self):
        return "another method"


def _doubling(model):
    model.__class__ = Doubling


def _refused(model, match, tmp_path):
    for call in (lambda: from_native(model), lambda: convert_checkpoint(model, tmp_path / "out")):
        with pytest.raises(ValueError, match=match) as caught:
            call()
        assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_epsilon, r"model\.layers\.0\.input_layernorm\.variance_epsilon is 1e-06 instead of 0\.5"),
        (_stretched, r"model\.rotary_emb\.rope_type is 'default' instead of 'linear'"),
        (_base, r"model\.rotary_emb\.original_inv_freq holds other numbers"),
        (_activation, r"model\.layers\.0\.mlp\.act_fn runs the forward of torch.nn.*ReLU"),
        (_quantized, r"model\.layers\.0\.self_attn\.q_proj runs the forward of torch\.ao\..*quantized"),
        (_doubling, r"Doubling computes otherwise .*it runs the forward of .*Doubling instead of .*LlamaForCausalLM"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_its_config_does_not_build(change, match, tmp_path):
    model = _llama()
    change(model)
    _refused(model, match, tmp_path)


def test_a_layer_of_ours_that_was_exchanged(tmp_path):
    ours = from_native(_llama())
    ours.model.layers[0].mlp.up_proj.__class__ = Twice
    for call in (lambda: to_native(ours), lambda: convert_checkpoint(ours, tmp_path / "out")):
        with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj runs the forward of .*Twice instead of torch.*Linear"):
            call()


@pytest.mark.slow
def test_what_changes_no_result_converts(tmp_path):
    """Ids of tokens, dropout, checkpointing, a resized vocabulary, half precision, a subclass that computes the same."""
    model = _llama()
    model.__class__ = Plain
    model.config.pad_token_id, model.config.attention_dropout = 5, 0.5
    model.gradient_checkpointing_enable()
    model.train().resize_token_embeddings(70)
    model.model.layers[0].register_forward_hook(lambda *rest: None)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = copy.deepcopy(model.config.to_dict())
    for dtype in (torch.float32, torch.bfloat16):
        assert not from_native(model.to(dtype)).training
        convert_checkpoint(model, tmp_path / str(dtype))
        assert model.training and model.is_gradient_checkpointing and type(model) is Plain
    config["dtype"] = model.config.to_dict()["dtype"]
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name].bfloat16(), tensor) for name, tensor in model.state_dict().items())


def test_a_longer_dynamic_rope_is_not_another_build():
    """Frequencies that moved with what was read are no change of the config."""
    model = native_model("llama", "dynamic", num_hidden_layers=1)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 40, dtype=torch.long))
    from_native(model)


@pytest.mark.slow
def test_mixed_dtypes_in_memory_are_not_rounded_unasked(tmp_path):
    model = _llama().bfloat16()
    model.model.norm.float()
    with pytest.raises(ValueError, match=r"dtype='bfloat16', which its model has, cannot hold 1 .*\['model.norm.weight'\]"):
        convert_checkpoint(model, tmp_path / "out")
    assert convert_checkpoint(model, tmp_path / "out", dtype="float32")["dtype"] == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("cases", [native_cases, encoder_cases], ids=["decoders", "encoders"])
def test_no_family_is_another_build_than_its_own(cases):
    """Every case of every family, built and run, beside what its config builds without weights."""
    for case in cases.CASES:
        head = {} if cases is native_cases else {"head": next(iter(find_family(case[0]).heads))}
        model = cases.native_model(*case, **head).bfloat16()
        plain = skeleton(type(model), copy.deepcopy(model.config), torch.bfloat16, attn_implementation="eager")
        refuse_other_build(model, plain)


# ---- wrappers ----
class Parallel(torch.nn.Module):
    """As DistributedDataParallel holds what it wraps."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_wrappers_are_pointed_to_what_they_wrap(tmp_path):
    _refused(torch.compile(_llama(), backend="eager"), r"what torch.compile wraps, model\._orig_mod", tmp_path)
    _refused(Parallel(_llama()), r"Parallel cannot be converted: .*give what it wraps, model\.module", tmp_path)
    for thing in (None, 3, {"a": 1}, torch.nn.Linear(2, 2)):
        _refused(thing, "is no model of transformers; give a folder, a Hub id, or a model", tmp_path)
        with pytest.raises(ValueError, match="is no model of transformers"):
            to_native(thing)


def test_adapters_on_a_model(tmp_path):
    peft = pytest.importorskip("peft")
    model = _llama()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    _refused(wrapped, r"merge_and_unload\(\)", tmp_path)
    _refused(model, r"has an adapter on its layers, .*merge_and_unload\(\)", tmp_path)
    from_native(wrapped.merge_and_unload())
