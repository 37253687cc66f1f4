"""Vision-language families in and out: equal logits with images, equal tokens, bitwise equal weights."""

import json

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    CLIPVisionConfig,
    Cohere2Config,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    GraniteConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    QianfanOCRConfig,
    QianfanOCRForConditionalGeneration,
    QianfanOCRVisionConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)

from hf_variants import VariantsForImageTextToText
from hf_variants.convert import from_native, to_native
from hf_variants.convert.vision_conversion import vision_config_from_native
from hf_variants.convert.vision_families import VISION_FAMILIES
from tests.modeling.helpers import TOLERANCE
from tests.vision import GATED, vlm

VISION = {
    **{"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3},
    **{"image_size": 16, "patch_size": 4},
}
TEXT = {
    **{"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
IMAGE, GEMMA = 98, {**TEXT, "head_dim": 8}


def clip():
    return CLIPVisionConfig(**VISION)


def siglip(**keys):
    return SiglipVisionConfig(**{**VISION, "vision_use_head": False, **keys})


def llava(vision, text, **keys):
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **keys))


def idefics3(config_class, model_class, **keys):
    config = config_class(vision_config=dict(VISION), text_config=LlamaConfig(**TEXT, **keys), image_token_id=IMAGE, **keys)
    return model_class(config)


def paligemma(text, **keys):
    keys = {"image_token_index": IMAGE, "projection_dim": 32, "hidden_size": 32, "vocab_size": 99, **keys}
    return PaliGemmaForConditionalGeneration(PaliGemmaConfig(vision_config=siglip(), text_config=text, **keys))


def gemma3(vision=None, window=6, **keys):
    layers = ["sliding_attention", "full_attention"]
    text = Gemma3TextConfig(**GEMMA, sliding_window=window, query_pre_attn_scalar=8, layer_types=layers)
    keys = {"image_token_index": IMAGE, "mm_tokens_per_image": 4, **keys}
    return Gemma3ForConditionalGeneration(Gemma3Config(vision_config=vision or siglip(), text_config=text, **keys))


def internvl(vision=None, text=None, **keys):
    vision = vision or InternVLVisionConfig(**VISION)
    keys = {"image_token_id": IMAGE, "tie_word_embeddings": False, **keys}
    return InternVLForConditionalGeneration(
        InternVLConfig(vision_config=vision, text_config=text or Qwen2Config(**TEXT), **keys)
    )


def qianfan_ocr(text=None, vision=None, **keys):
    vision = QianfanOCRVisionConfig(**{**VISION, "drop_path_rate": 0.0, **(vision or {})})
    text = text or Qwen3Config(**TEXT, head_dim=8)
    return QianfanOCRForConditionalGeneration(
        QianfanOCRConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, **keys)
    )


def vipllava(vision=None, **keys):
    config = VipLlavaConfig(vision_config=vision or clip(), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE, **keys)
    return VipLlavaForConditionalGeneration(config)


def aya_vision(vision=None, **keys):
    config = AyaVisionConfig(
        vision_config=vision or siglip(), text_config=Cohere2Config(**TEXT, sliding_window=8), image_token_index=IMAGE, **keys
    )
    return AyaVisionForConditionalGeneration(config)


def cohere2_vision(vision=None, **keys):
    config = Cohere2VisionConfig(
        vision_config=vision or siglip(), text_config=Cohere2Config(**TEXT, sliding_window=8), image_token_id=IMAGE, **keys
    )
    return Cohere2VisionForConditionalGeneration(config)


def deepseek_vl(vision=None):
    config = DeepseekVLConfig(
        vision_config=vision or siglip(), text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, tie_word_embeddings=False
    )
    return DeepseekVLForConditionalGeneration(config)


FULL = {"vision_feature_select_strategy": "full"}
CASES = {
    "llava": lambda: llava(clip(), LlamaConfig(**TEXT)),
    "llava_all_states": lambda: llava(
        clip(), Qwen2Config(**TEXT), **FULL, vision_feature_layer=[-2, 1], multimodal_projector_bias=False
    ),
    "llava_siglip_sliding": lambda: llava(
        siglip(), MistralConfig(**TEXT, sliding_window=8), **FULL, vision_feature_layer=-1, projector_hidden_act="relu"
    ),
    "llava_tied": lambda: llava(clip(), LlamaConfig(**TEXT, tie_word_embeddings=True)),
    "llava_tied_in_the_text_alone": lambda: llava(
        clip(), LlamaConfig(**TEXT, tie_word_embeddings=True), tie_word_embeddings=False
    ),
    "llava_tied_in_the_whole_alone": lambda: llava(clip(), LlamaConfig(**TEXT), tie_word_embeddings=True),
    "llava_whose_scale_of_logits_is_unread": lambda: llava(clip(), GraniteConfig(**TEXT, logits_scaling=3.0)),
    "llava_whose_cap_of_logits_is_unread": lambda: llava(
        clip(), Gemma2Config(**GEMMA, query_pre_attn_scalar=8, final_logit_softcapping=1.0)
    ),
    "idefics3": lambda: idefics3(Idefics3Config, Idefics3ForConditionalGeneration),
    "smolvlm_tied": lambda: idefics3(SmolVLMConfig, SmolVLMForConditionalGeneration, tie_word_embeddings=True),
    "idefics3_tied_in_the_whole_alone": lambda: Idefics3ForConditionalGeneration(
        Idefics3Config(
            vision_config=dict(VISION), text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, tie_word_embeddings=True
        )
    ),
    "paligemma": lambda: paligemma(GemmaConfig(**GEMMA)),
    "paligemma_untied_in_the_text_alone": lambda: paligemma(GemmaConfig(**GEMMA, tie_word_embeddings=False)),
    "paligemma2_beyond_the_vocabulary": lambda: paligemma(
        Gemma2Config(**GEMMA, sliding_window=6, query_pre_attn_scalar=8), image_token_index=120
    ),
    "gemma3": gemma3,
    "gemma3_unpooled_beyond_the_vocabulary": lambda: gemma3(
        siglip(layer_norm_eps=1e-3), window=16, mm_tokens_per_image=16, image_token_index=120
    ),
    "internvl": internvl,
    "internvl_qk_norm_of_one_layer": lambda: internvl(
        InternVLVisionConfig(**VISION, use_qk_norm=True, norm_type="rms_norm", attention_bias=True, use_mean_pooling=False),
        Qwen3MoeConfig(**TEXT, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
        vision_feature_layer=-2,
        downsample_ratio=0.25,
        projector_hidden_act="relu",
    ),
    "internvl_behind_its_norm_unshuffled": lambda: internvl(
        InternVLVisionConfig(**VISION, use_mean_pooling=False), LlamaConfig(**TEXT), downsample_ratio=1.0
    ),
    "qianfan_ocr": qianfan_ocr,
    "qianfan_ocr_tied_behind_its_norm": lambda: qianfan_ocr(
        LlamaConfig(**TEXT, tie_word_embeddings=True),
        {"use_qk_norm": True, "attention_bias": False, "use_mean_pooling": False},
        tie_word_embeddings=True,
        downsample_ratio=0.25,
    ),
    "vipllava": lambda: vipllava(vision_feature_layer=[-2, 1, -3]),
    "vipllava_one_layer": lambda: vipllava(vision_feature_layer=2, projector_layernorm_eps=1e-2, projector_hidden_act="relu"),
    "aya_vision": aya_vision,
    "aya_vision_clip": lambda: aya_vision(
        clip(),
        vision_feature_select_strategy="default",
        vision_feature_layer=1,
        alignment_intermediate_size=20,
        adapter_layer_norm_eps=1e-2,
        downsample_factor=4,
    ),
    "cohere2_vision": lambda: cohere2_vision(alignment_intermediate_size=20),
    "cohere2_vision_unshuffled": lambda: cohere2_vision(alignment_intermediate_size=64, downsample_factor=1),
    "deepseek_vl": deepseek_vl,
    "deepseek_vl_clip": lambda: deepseek_vl(clip()),
}


def native_of(name):
    """A native model, every weight random and of a size that keeps logits of the order of one."""
    model, generator = CASES[name](), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * (0.1 if parameter.dim() > 1 else 0.2)
            one = "norm" in key and key.endswith("weight") and parameter.dim() == 1 and "gemma" not in name
            parameter.copy_(drawn + 1 if one else drawn)
    model.tie_weights()
    return model.eval()


def inputs_of(name, ours):
    """The same batch for both sides: two rows, left-padded, with two images and with one."""
    image, count = ours.config.image_token_id, ours.config.tokens_of_image()
    rows = [[1, *[image] * count, 5, 6, *[image] * count, 7, 8], [1, 9, 10, *[image] * count, 11]]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    given = {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}
    theirs = dict(given)
    if name.startswith(("idefics3", "smolvlm")):
        padded = torch.stack((pixels[:2], torch.stack((pixels[2], torch.zeros_like(pixels[2])))))
        theirs["pixel_values"] = padded
    types = {}
    if name.startswith("gemma3"):
        types = {"token_type_ids": (ids == image).long()}
    if name.startswith("paligemma"):
        # (position of every token, which the native class counts from the row's start, pads included)
        types = {"token_type_ids": (torch.arange(longest) >= longest - 1).long().expand(2, -1)}
        theirs["position_ids"] = (mask.cumsum(1)).clamp(min=1)
    return {**given, **types}, {**theirs, **types}


FAST = ("idefics3", "gemma3")
# the first case of each family
FIRST = ("llava", "paligemma", "idefics3", "gemma3", "internvl", "vipllava", "aya_vision", "cohere2_vision", "deepseek_vl")
FIRST += ("qianfan_ocr",)
GENERATED = (
    "smolvlm_tied",
    "paligemma2_beyond_the_vocabulary",
    *(name for name in FIRST if name not in ("paligemma", "idefics3")),
)


@pytest.mark.parametrize("name", CASES)
def test_native_and_ours_are_equal(name):
    native = native_of(name)
    ours = from_native(native)
    assert type(ours) is VariantsForImageTextToText
    own, theirs = inputs_of(name, ours)
    real = own["attention_mask"].bool()
    with torch.no_grad():
        found, expected = ours(**own).logits, native(**theirs).logits
    assert (found - expected)[real].abs().max() <= TOLERANCE and expected[real].std() > 0.1
    back = to_native(ours)
    state, again = native.state_dict(), back.state_dict()
    assert state.keys() == again.keys() and all(torch.equal(state[key], again[key]) for key in state)
    skipped = ("dtype", "transformers_version")
    configs = [json.loads(json.dumps(model.config.to_dict(), default=str)) for model in (native, back)]
    for config in configs:
        for part in (config, config["text_config"], config["vision_config"]):
            for key in skipped:
                part.pop(key, None)
    assert configs[0] == configs[1]


# InternVL's bridge again
REPEATED = ("qianfan_ocr",)
SELDOM = [pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in GENERATED]


@pytest.mark.parametrize("name", SELDOM)
def test_native_and_ours_generate_the_same(name):
    native = native_of(name)
    ours = from_native(native)
    own, theirs = inputs_of(name, ours)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "suppress_tokens": [IMAGE]}
    for both in (own, theirs):
        both.pop("position_ids", None)
        if "token_type_ids" in both and "gemma3" not in name:
            both["token_type_ids"] = torch.zeros_like(both["token_type_ids"])
    with torch.no_grad():
        assert torch.equal(ours.generate(**own, **options), native.generate(**theirs, **options))


@pytest.mark.parametrize(
    "name",
    ["idefics3", "gemma3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("llava_all_states", *FIRST) if n not in FAST)],
)
def test_folders(tmp_path, name):
    """A native folder comes in, ours is saved and read by the Auto class, and goes back."""
    native = native_of(name)
    native.save_pretrained(tmp_path / "native")
    ours = from_native(tmp_path / "native")
    ours.save_pretrained(tmp_path / "ours")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "ours").eval()
    own, _ = inputs_of(name, ours)
    with torch.no_grad():
        assert torch.equal(again(**own).logits, ours(**own).logits)
    back = to_native(again).state_dict()
    assert all(torch.equal(tensor, back[key]) for key, tensor in native.state_dict().items())
    half = from_native(tmp_path / "native", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name", ["llava", "gemma3", *(pytest.param(n, marks=pytest.mark.slow) for n in FIRST if n not in ("llava", "gemma3"))]
)
def test_losses_and_gradients_are_equal(name):
    native = native_of(name)
    ours = from_native(native)
    own, theirs = inputs_of(name, ours)
    # what pads say of the first token differs, and is no matter
    labels = own["input_ids"].masked_fill(own["attention_mask"].cumsum(1) < 2, -100)
    labels = labels.masked_fill(own["input_ids"] == ours.config.image_token_id, -100)
    ours.train(), native.train()
    losses = ours(**own, labels=labels).loss, native(**theirs, labels=labels).loss
    assert abs(losses[0] - losses[1]) <= TOLERANCE
    for loss in losses:
        loss.backward()
    bridge = {"idefics3": "connector", "deepseek_vl": "aligner"}.get(name, "multi_modal_projector")
    expected = [p.grad for key, p in native.named_parameters() if bridge in key]
    found = [p.grad for key, p in ours.named_parameters() if "multi_modal_projector" in key]
    if name == "gemma3":
        # natively a matrix before its norm, stored transposed
        expected = [expected[1], expected[0].T]
    assert len(found) == len(expected) and all((a - b).abs().max() <= 1e-5 for a, b in zip(found, expected, strict=True))


REFUSED = {
    "a patch that is dropped": (
        lambda: llava(siglip(), LlamaConfig(**TEXT)),
        "vision_feature_select_strategy='default'.*first",
    ),
    "a head of the tower": (lambda: llava(siglip(vision_use_head=True), LlamaConfig(**TEXT), **FULL), "left over.*head"),
    "a head of the tower of gemma3": (lambda: gemma3(vision=siglip(vision_use_head=True)), "vision_use_head=True"),
    "squares that do not tile": (lambda: gemma3(mm_tokens_per_image=9), "mm_tokens_per_image=9 .*do not tile 4 x 4"),
    "images beyond the window": (lambda: gemma3(window=3), "text_config.sliding_window=3 .*images of 4 tokens"),
    "tokens that are no square": (lambda: gemma3(mm_tokens_per_image=8), "mm_tokens_per_image=8 "),
    "patches that are no square": (
        lambda: internvl(InternVLVisionConfig(**{**VISION, "image_size": [8, 16]})),
        "image_size=.*2 x 4 patches",
    ),
    "a class token among squares": (lambda: internvl(**FULL), "its class token would stand among"),
    "several layers of one": (lambda: internvl(vision_feature_layer=[1, 2]), r"vision_feature_layer=\[1, 2\].*one layer"),
    "several layers of aya_vision": (
        lambda: aya_vision(vision_feature_layer=[1, 2], **FULL),
        r"vision_feature_layer=\[1, 2\].*built for one",
    ),
    "a ratio that is no inverse": (lambda: internvl(downsample_ratio=0.3), "downsample_ratio=0.3 "),
    "another tower of internvl": (lambda: internvl(siglip()), "vision_config.model_type='siglip_vision_model'.*from a file"),
    "a first patch of vipllava": (lambda: vipllava(siglip(), vision_feature_layer=1), "drops the first state"),
    "a gate of another width": (lambda: aya_vision(alignment_intermediate_size=21), "alignment_intermediate_size=21 .*halved"),
    "a class token of cohere2_vision": (lambda: cohere2_vision(clip(), alignment_intermediate_size=20), "class token would"),
    "a text of no family": (
        lambda: llava(clip(), Gemma3TextConfig(**GEMMA, use_bidirectional_attention=True)),
        "cannot be converted",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_toggle_means_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        from_native(make())


@pytest.mark.slow
def test_families_that_do_not_fit_say_why():
    from transformers import MllamaConfig

    with pytest.raises(ValueError, match="model_type='mllama' cannot be converted: no toggle means layers that attend"):
        vision_config_from_native(MllamaConfig())
    for keys, family, message in [
        (GATED, "llava", "llava cannot express .*bridge='gated_cross_attention'"),
        ({}, "llava", "llava cannot express .*image_delimiters=True"),
        ({"image_delimiters": False, "token_compression": "pool"}, "idefics3", "idefics3 cannot express .*token_compression"),
        ({}, "internvl", "internvl with vision_config.model_type='siglip_vision_model' cannot be converted: read from a file"),
        ({}, "vipllava", "vipllava with vision_config.model_type='siglip_vision_model' cannot be converted: it drops"),
        ({}, "aya_vision", "aya_vision cannot express .*projector='mlp'.*projector_norm='none'.*image_delimiters=True"),
        (
            {"image_delimiters": False, "text_keys": {"logits_scaling": 2.0}},
            "llava",
            "llava cannot express .*text_config.logits_scaling=2.0 .it would be 1.0",
        ),
        ({"image_delimiters": False}, "gemma3", "gemma3 cannot express a language model of type 'llama'"),
        (
            {"projector_intermediate_size": 20},
            "llava",
            "llava cannot express .*projector_intermediate_size=20 .it would be 32",
        ),
        ({}, None, "no native family expresses this config; llava: .*paligemma: "),
    ]:
        model = vlm(text_keys={"head_dim": None, **keys.pop("text_keys", {})}, tower=siglip(image_size=16), **keys)
        with pytest.raises(ValueError, match=message):
            to_native(model, family)


def test_a_model_that_came_from_nowhere_goes_to_the_first_family_that_means_it():
    model = vlm(text_keys={"head_dim": None}, tower=clip(), image_delimiters=False, vision_feature_layer=-2)
    native = to_native(model)
    assert native.config.model_type == "llava" and {"smolvlm", *FIRST} == set(VISION_FAMILIES)
    ids = torch.tensor([[1, *[60] * 16, 5]])
    pixels = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        found, expected = (m(input_ids=ids, pixel_values=pixels).logits for m in (model, native))
    assert (found - expected).abs().max() <= TOLERANCE
