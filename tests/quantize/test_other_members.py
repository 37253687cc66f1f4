"""Members that are no decoders: encoders are quantized alike, by bitsandbytes encoder-decoders too; towers are refused."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from hf_variants import VariantsImageEncoderConfig
from hf_variants.modeling.awq_linear import AwqLinear
from hf_variants.quantize import awq, quantize_checkpoint, rtn
from hf_variants.quantize.bits_and_bytes import load_in_bitsandbytes, quantized_counts
from tests.quantize.quantized import FITTING, calibration
from tests.variants import build, draw_ids, tiny, tiny_pair
from tests.vision import vision_config

WIDE = {**FITTING, "intermediate_size": 128, "num_key_value_heads": 4}


def encoder(name="bert"):
    return build(tiny(name, **WIDE))


def _files_are_equal(first, second):
    first, second = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- encoders ----
@pytest.mark.parametrize("name", ["bert", pytest.param("modernbert", marks=pytest.mark.slow)])
@torch.no_grad()
def test_an_encoder_is_quantized_loads_by_every_auto_class_and_saves_again(name, tmp_path):
    model = encoder(name)
    model.save_pretrained(tmp_path / "full")
    quantize_checkpoint(tmp_path / "full", tmp_path / "small", calibration=calibration(), group_size=32)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "small", dtype=torch.float32)
    packed = [module for module in loaded.modules() if isinstance(module, AwqLinear)]
    assert len(packed) == quantized_counts(loaded)["modules"] > 0 and not quantized_counts(loaded)["dense"]
    loaded.save_pretrained(tmp_path / "again")
    assert _files_are_equal(tmp_path / "small", tmp_path / "again")
    ids = draw_ids(2, 12)
    logits = loaded(input_ids=ids).logits
    expected = model(input_ids=ids).logits
    # outputs that have nothing in common would give about 2
    assert float((logits - expected).square().mean() / expected.square().mean()) < 0.3
    keys = {"pooler": False, "task_head": "linear"} if loaded.config.pooler else {}
    stack = AutoModel.from_pretrained(tmp_path / "small", dtype=torch.float32, **keys)
    assert torch.equal(stack(input_ids=ids).last_hidden_state, loaded.model(input_ids=ids).last_hidden_state)


@pytest.mark.slow
def test_a_native_encoder_is_brought_in(tmp_path):
    sizes = {"vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=64)).save_pretrained(tmp_path / "bert")
    report = quantize_checkpoint(tmp_path / "bert", tmp_path / "small", method="rtn", group_size=32)
    assert report["quantized_modules"] == 2 * 6
    assert AutoConfig.from_pretrained(tmp_path / "small").architectures == ["VariantsForMaskedLM"]


@pytest.mark.parametrize("make", [rtn, lambda model, **keys: awq(model, calibration(), **keys)], ids=["rtn", "awq"])
def test_perplexity_of_the_next_token_is_refused_for_encoders(make):
    with pytest.raises(ValueError, match="eval_ids asks for perplexities of the next token, which .*is_causal=False"):
        make(encoder(), group_size=32, eval_ids=draw_ids(2, 16))


# ---- towers alone ----
def test_an_image_encoder_alone_is_refused(tmp_path):
    model = AutoModel.from_config(VariantsImageEncoderConfig(image_size=8, patch_size=4, encoder={"hidden_size": 32}))
    message = "model_type='variants_image_encoder' is made of .*which no method here packs: choose a"
    with pytest.raises(ValueError, match=message):
        rtn(model, group_size=32)
    model.save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(tmp_path / "full", tmp_path / "small", method="rtn", group_size=32)
    assert not (tmp_path / "small").exists()


# ---- bitsandbytes ----
@pytest.mark.parametrize("scheme", ["nf4", "int8"])
@pytest.mark.parametrize(
    "make",
    [encoder, lambda: build(tiny("electra", **WIDE)), lambda: build(tiny_pair(wider=WIDE))],
    ids=["bert", "electra", "encoder_decoder"],
)
@torch.no_grad()
def test_bitsandbytes_packs_every_layer_and_no_head(make, scheme, tmp_path):
    pytest.importorskip("bitsandbytes")
    model = make()
    model.save_pretrained(tmp_path / "full")
    packed = load_in_bitsandbytes(tmp_path / "full", scheme, dtype=torch.float32)
    assert type(packed) is type(model)
    counts = quantized_counts(packed)
    inside = [p for n, p in model.named_parameters() if ".layers." in n and p.dim() > 1]
    assert counts["parameters"] == sum(p.numel() for p in inside) and not counts["dense"]
    dense = {n for n, m in packed.named_modules() if type(m) is torch.nn.Linear}
    assert dense == {n for n, m in model.named_modules() if type(m) is torch.nn.Linear and ".layers." not in n}
    packed.save_pretrained(tmp_path / "small")
    again = type(model).from_pretrained(tmp_path / "small")
    again.save_pretrained(tmp_path / "again")
    assert _files_are_equal(tmp_path / "small", tmp_path / "again")
    ids = {"input_ids": draw_ids(2, 12)}
    if model.config.is_encoder_decoder:
        ids["decoder_input_ids"] = draw_ids(2, 6)
    logits, expected = packed(**ids).logits.float(), model(**ids).logits
    # random weights of three stacked layers: nf4 errors add up, int8 shows that nothing else does
    assert float((logits - expected).square().mean() / expected.square().mean()) < (0.05 if scheme == "int8" else 1.0)


def test_bitsandbytes_refuses_images(tmp_path):
    pytest.importorskip("bitsandbytes")
    AutoModel.from_config(vision_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="what image encoders hold is not counted yet"):
        load_in_bitsandbytes(tmp_path)
