"""No value is drawn on the meta device while a model is built for its weights; what a checkpoint lacks is drawn afterwards."""

import torch
from transformers import AutoModelForCausalLM
from variants import build, tiny


def test_what_a_checkpoint_lacks_is_drawn(tmp_path):
    model = build(tiny("gqa"))
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, tie_word_embeddings=False, qk_norm="head", output_loading_info=True
    )
    assert {name.rsplit(".", 2)[1] for name in report["missing_keys"]} >= {"q_norm", "k_norm"}
    assert all(torch.isfinite(value).all() for value in loaded.state_dict().values())
    assert torch.equal(
        loaded.model.layers[0].self_attn.q_norm.weight, torch.ones_like(loaded.model.layers[0].self_attn.q_norm.weight)
    )


def test_a_load_draws_nothing(tmp_path, monkeypatch):
    build(tiny("gqa")).save_pretrained(tmp_path)
    drawn = []
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda _: drawn.append(torch.nn.init.kaiming_uniform_.__name__))
    AutoModelForCausalLM.from_pretrained(tmp_path)
    assert set(drawn) == {"empty_func"}, "transformers.initialization.no_init_weights puts this in the place of every draw"
