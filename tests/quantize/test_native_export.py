"""`to="native"`: an AWQ checkpoint of the native class, read by `from_pretrained`, with the result's logits."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_variants.quantize import AwqLinear, quantize_checkpoint
from tests.quantize.quantized import calibration
from tests.variants import draw_ids, far
from tests.vision import vlm

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
NATIVE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SHAPE)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"})),
}


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in NATIVE if name != "llama")]
)
def test_the_native_checkpoint_has_the_logits_of_the_family_one(family, tmp_path):
    NATIVE[family]().eval().save_pretrained(tmp_path / "full")
    options = {"group_size": 32, "calibration": calibration(8), "dtype": torch.float32}
    reports = {to: quantize_checkpoint(tmp_path / "full", tmp_path / to, to=to, **options) for to in ("variants", "native")}
    config = json.loads((tmp_path / "native" / "config.json").read_text())
    assert config["model_type"] == family and config["quantization_config"]["quant_method"] == "awq"
    models = {to: AutoModelForCausalLM.from_pretrained(tmp_path / to, dtype=torch.float32) for to in reports}
    packed = [module for module in models["native"].modules() if isinstance(module, AwqLinear)]
    assert sum(m.in_features * m.out_features for m in packed) == reports["native"]["quantized_parameters"]
    ids = draw_ids(2, 16)
    with torch.no_grad():
        logits = {to: model(ids).logits for to, model in models.items()}
    assert far(logits["native"], logits["variants"]) < 1e-5 * max(1.0, logits["variants"].abs().max().item())
    # names of what stays dense are complete: other runtimes decide by them
    dense = {name for name, m in models["native"].named_modules() if isinstance(m, torch.nn.Linear)}
    assert dense == set(config["quantization_config"]["modules_to_not_convert"])


def test_native_experts_are_refused_before_the_work(tmp_path):
    shape = {**SHAPE, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape)).save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="to='native' cannot hold this model: .* fused tensors"):
        quantize_checkpoint(tmp_path / "full", tmp_path / "q", to="native", method="rtn", group_size=32)
    assert not (tmp_path / "q").exists()


PAIRS = {
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            **{"vocab_size": 61, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_decoder_layers": 2},
            **{"num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0, "feed_forward_proj": "gated-gelu"},
        )
    ),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(
            **{"vocab_size": 61, "d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 96},
            **{"decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
            **{"max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", PAIRS)
def test_a_native_encoder_decoder_comes_in_and_goes_out(family, tmp_path):
    torch.manual_seed(0)
    source = PAIRS[family]().eval()
    source.save_pretrained(tmp_path / "full")
    pairs = [{"input_ids": draw_ids(6, 14), "labels": draw_ids(6, 9, seed=4)}]
    options = {"group_size": 32, "calibration": pairs, "dtype": torch.float32}
    reports = {to: quantize_checkpoint(tmp_path / "full", tmp_path / to, to=to, **options) for to in ("variants", "native")}
    models = {to: AutoModelForSeq2SeqLM.from_pretrained(tmp_path / to, dtype=torch.float32) for to in reports}
    assert type(models["native"]) is type(source)
    packed = [module for module in models["native"].modules() if isinstance(module, AwqLinear)]
    assert sum(m.in_features * m.out_features for m in packed) == reports["native"]["quantized_parameters"]
    inputs = {"input_ids": draw_ids(2, 12, seed=8), "decoder_input_ids": draw_ids(2, 7, seed=9)}
    with torch.no_grad():
        logits = {to: model(**inputs).logits for to, model in models.items()}
        expected = source(**inputs).logits
    assert far(logits["native"], logits["variants"]) < 1e-5 * max(1.0, logits["variants"].abs().max().item())
    assert float((logits["native"] - expected).square().mean() / expected.square().mean()) < 0.3


def test_native_vision_language_models_are_refused_before_the_work(tmp_path):
    vlm().save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="to='native' cannot hold this model: the files of native vision-language models"):
        quantize_checkpoint(tmp_path / "full", tmp_path / "q", to="native", method="rtn", group_size=32)
    assert not (tmp_path / "q").exists()
