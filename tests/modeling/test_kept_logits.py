"""Every form of logits_to_keep gives the logits of exactly the positions it names."""

import torch

from tests.variants import build, tiny


def test_every_form_of_logits_to_keep():
    model, ids = build(tiny("gqa")).eval(), torch.arange(12).view(2, 6)
    whole = model(ids).logits
    chosen = torch.tensor([[True, False, False, True, False, False], [False, True, False, False, False, True]])
    positions = torch.tensor([[0, 3], [1, 5]])
    forms = {
        "all": (0, whole),
        "last": (2, whole[:, -2:]),
        "same in every row": (torch.tensor([1, 4]), whole[:, [1, 4]]),
        "by row": (positions, torch.stack([whole[row, positions[row]] for row in range(2)])),
        "mask": (chosen, whole[chosen]),
    }
    for name, (logits_to_keep, expected) in forms.items():
        found = model(ids, logits_to_keep=logits_to_keep).logits
        assert found.shape == expected.shape, name
        assert (found - expected).abs().max() < 1e-5, name
