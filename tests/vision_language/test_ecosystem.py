"""What people do with a vision-language model: adapters, 4-bit weights, more tokens, and back from a folder."""

import pytest
import torch
from transformers import AutoModel, AutoModelForImageTextToText, BitsAndBytesConfig

from hf_variants import VariantsVisionModel
from tests.modeling.helpers import TOLERANCE
from tests.towers import native_config
from tests.variants import far
from tests.vision import BRIDGES, GATED, IMAGE, IMAGE_ID, MIXED, batch, vlm

OTHERS = ("gqa", "alibi_terms", "dynamic", "moe_groups")


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("keys", [{}, GATED, {"token_compression": "resampler", "num_resampler_heads": 3}])
@pytest.mark.parametrize("text", ["mla_alternating", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_saved_and_loaded_it_is_the_same(tmp_path, text, keys):
    """Constants of the text (rope, slopes) and of the tower are there again after loading."""
    model = vlm(text, **keys)
    inputs = batch(model, *MIXED)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert far(logits(again, inputs), expected) == 0.0
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(base, VariantsVisionModel)
    with torch.no_grad():
        assert far(model.head(base(**inputs).last_hidden_state), expected) <= TOLERANCE


def test_missing_weights_are_errors(tmp_path):
    from safetensors.torch import load_file, save_file

    vlm().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.multi_modal_projector.delimiters.start"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="1 missing .model.multi_modal_projector.delimiters.start"):
        AutoModelForImageTextToText.from_pretrained(tmp_path)
    loaded, report = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    start = loaded.model.multi_modal_projector.delimiters.start
    assert len(report["missing_keys"]) == 1 and 0.005 < start.std() < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_more_tokens(tmp_path, tied):
    model = vlm(text_keys={"tie_word_embeddings": tied})
    model.resize_token_embeddings(70, mean_resizing=False)
    assert model.config.text_config.vocab_size == 70 == model.lm_head.weight.shape[0]
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    inputs = batch(model, *MIXED)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    assert far(logits(AutoModelForImageTextToText.from_pretrained(tmp_path).eval(), inputs), expected) == 0.0
    assert expected.shape[-1] == 70


def test_toggles_changed_after_building_are_not_saved_as_if_they_had_acted(tmp_path):
    model = vlm()
    model.config.image_attention = "bidirectional"
    model.config.text_config.hidden_act = "gelu"
    model.save_pretrained(tmp_path)
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path).config
    assert saved.image_attention == "causal" and saved.text_config.hidden_act == "silu"


@pytest.mark.parametrize("bridge", ["projection", "gated"])
def test_lora_reaches_tower_bridge_text_and_experts(tmp_path, bridge):
    from peft import LoraConfig, PeftModel, get_peft_model

    model = vlm("moe_groups", **BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    plain = logits(model, inputs)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    reached = {name for name, parameter in adapted.named_parameters() if "lora_B" in name}
    parts = ["vision_tower", "multi_modal_projector", "self_attn.q_proj", "mlp.experts"]
    parts += ["cross_layers"] if bridge == "gated" else []
    assert all(any(part in name for name in reached) for part in parts) and not any("lm_head" in name for name in reached)
    found = logits(adapted, inputs)
    assert far(found, plain) > 1e-3
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(vlm("moe_groups", **BRIDGES[bridge]), tmp_path).eval()
    assert far(logits(again, inputs), found) <= TOLERANCE
    with torch.no_grad():
        tokens = adapted.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert tokens.shape[1] == inputs["input_ids"].shape[1] + 3
    assert far(logits(adapted.merge_and_unload(), inputs), found) <= 1e-4


def test_4_bit_weights_reach_tower_bridge_and_experts(tmp_path):
    functional = pytest.importorskip("bitsandbytes.functional")
    wide = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 1}
    wide |= {"num_experts": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    tower = native_config("siglip_vision_model", hidden_size=64, intermediate_size=128, num_attention_heads=2)
    model = vlm("gqa", tower, text_keys=wide)
    inputs = batch(model, *MIXED)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, quantization_config=settings, dtype=torch.float32)
    packed = {name for name, parameter in loaded.named_parameters() if parameter.dtype == torch.uint8}
    for part in ("vision_tower", "multi_modal_projector.projector.linear_1", "self_attn.q_proj", "mlp.experts.3.down_proj"):
        assert any(part in name for name in packed), part
    assert not any("lm_head" in name or "mlp.gate." in name for name in packed)
    dense = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        if parameter.dtype == torch.uint8 and "experts" not in name:
            rounded = functional.dequantize_4bit(parameter.data, parameter.quant_state)
            assert (rounded - dense[name]).norm() < 0.15 * dense[name].norm(), name
    # tower, bridge and text are each a few rounded layers deep
    assert torch.corrcoef(torch.stack((logits(loaded, inputs).flatten(), expected.flatten())))[0, 1] > 0.8
    assert getattr(loaded.config.text_config, "quantization_config", None) is None


def test_a_smaller_precision_keeps_its_dtype_throughout():
    for keys in ({}, GATED):
        model = vlm(**keys).to(torch.bfloat16)
        inputs = batch(model, *MIXED)
        assert logits(model, inputs).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            assert logits(vlm(**keys), inputs).isfinite().all()


def test_a_model_is_not_changed_by_a_call():
    model = vlm(**GATED)
    ids = torch.tensor([[1, IMAGE_ID, 2]])
    kept = ids.clone()
    logits(model, {"input_ids": ids, **{k: v for k, v in batch(model, (1, IMAGE, 2)).items() if k == "pixel_values"}})
    assert torch.equal(ids, kept)
