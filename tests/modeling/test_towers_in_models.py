"""Every tower inside a vision-language model: what is saved is what is read, though some natively save under other names."""

import pytest
import torch

from hf_variants import VariantsForImageTextToText
from hf_variants.modeling.vision_tower import TOWERS
from tests.towers import NATIVE, own_config
from tests.vision import IMAGE, batch, vlm


@pytest.mark.parametrize("kind", TOWERS)
def test_a_tower_is_read_back_bitwise(kind, tmp_path):
    model = vlm(tower=kind if kind in NATIVE else own_config({"image_size": 12, "num_channels": 3}))
    model.save_pretrained(tmp_path)
    again, report = VariantsForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    inputs = batch(model, (1, IMAGE, 2, 3))
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, again.eval()(**inputs).logits)
