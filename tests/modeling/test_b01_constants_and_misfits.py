"""B01, B69: constants that no file holds are computed anew on loading, and a config that needs other weights is an error."""

import pytest
import torch

from hf_variants import VariantsForCausalLM
from tests.modeling.helpers import logits_of
from tests.variants import ATTENTION, MOE, POSITIONS, TOGGLES, build, draw_ids, tiny


def poison_memory(model):
    """Leave NaNs where the loader will find its empty storage."""
    sizes = {tensor.numel() for tensor in [*model.buffers(), *model.parameters()]}
    for _ in range(3):
        filled = [torch.full((size,), float("nan")) for size in sizes]
        del filled


@pytest.mark.parametrize("name", ["gqa", *POSITIONS])
def test_b01_constants_survive_a_load_into_poisoned_memory(name, tmp_path):
    model, ids = build(tiny(name)), draw_ids(2, 20)
    model.save_pretrained(tmp_path)
    poison_memory(model)
    again = VariantsForCausalLM.from_pretrained(tmp_path)
    found = dict(again.named_buffers())
    assert found.keys() == dict(model.named_buffers()).keys()
    assert all(torch.equal(found[key], value) for key, value in model.named_buffers())
    assert torch.equal(logits_of(again, ids), logits_of(model, ids))


@pytest.mark.parametrize("name", [*POSITIONS, "moe_groups"])
def test_b01_constants_survive_the_meta_device(name):
    """Built on meta, given empty storage and initialised, as large-model loaders do."""
    model = build(tiny(name))
    with torch.device("meta"):
        empty = VariantsForCausalLM(tiny(name))
    assert all(tensor.is_meta for tensor in [*empty.parameters(), *empty.buffers()])
    poison_memory(model)
    empty = empty.to_empty(device="cpu")
    empty.init_weights()
    found = dict(empty.named_buffers())
    for key, value in model.named_buffers():
        if "e_score_correction_bias" not in key:
            assert torch.equal(found[key], value), key


@pytest.mark.parametrize("name", [*ATTENTION, *MOE, "learned", "layernorm", "plain_bias", "tied", "lm_head_bias", "norm"])
def test_b69_a_config_that_needs_other_weights_is_loud(name, tmp_path):
    """A plain checkpoint read under another config: equal weights, or an error; never random ones."""
    overrides = {} if name in TOGGLES else {"norm_type": "layernorm"}
    config = tiny(name if name in TOGGLES else "gqa", **overrides)
    plain = build(tiny("gqa"))
    plain.save_pretrained(tmp_path)
    wanted = {key: value.shape for key, value in VariantsForCausalLM(config).state_dict().items()}
    given = {key: value.shape for key, value in plain.state_dict().items()}
    if wanted == given or name == "tied":
        assert VariantsForCausalLM.from_pretrained(tmp_path, config=config) is not None
        return
    with pytest.raises(ValueError, match="do not (fit|have the shapes)"):
        VariantsForCausalLM.from_pretrained(tmp_path, config=config)
