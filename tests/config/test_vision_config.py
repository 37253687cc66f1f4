"""The vision-language config: each rule alone, keys and parts, and what it says of itself."""

import pytest

from hf_variants import VariantsConfig, VariantsVisionConfig
from hf_variants.modeling.vision_rules import VISION_RULES
from hf_variants.modeling.vision_vocabulary import VISION_CHOICES
from tests.towers import native_config
from tests.vision import GATED, IMAGE_ID, vision_config

POOL, RESAMPLER = {"token_compression": "pool"}, {"token_compression": "resampler", "num_resampler_heads": 3}
SQUARE = {"tower": native_config("siglip_vision_model", image_size=16), **POOL}
CLIP = {"tower": native_config("clip_vision_model", image_size=16), "vision_feature_select_strategy": "full"}
# rule -> keys that break it
CASES = {
    "num_resampler_layers is positive": {**RESAMPLER, "num_resampler_layers": 0},
    "num_resampler_heads is positive": {**RESAMPLER, "num_resampler_heads": -1},
    "num_resampler_tokens is positive": {**RESAMPLER, "num_resampler_tokens": 0},
    "compression_factor is positive": {**SQUARE, "compression_factor": -2},
    "projector_intermediate_size is positive": {"projector_intermediate_size": 0},
    "projector_norm_eps is positive": {"projector_norm": "layernorm", "projector_norm_eps": -1e-5},
    "projector_norm_eps needs projector_norm in layernorm/rmsnorm": {"projector_norm_eps": 1e-6},
    "a single layer has no inner width": {"projector": "affine", "projector_intermediate_size": 8},
    "compression_factor needs its compression": {"compression_factor": 2},
    "num_resampler_tokens needs its compression": {"num_resampler_tokens": 4},
    "num_resampler_layers needs its compression": {"num_resampler_layers": 4},
    "num_resampler_heads needs its compression": {"num_resampler_heads": 4},
    "image_delimiters needs bridge=projection": {**GATED, "image_delimiters": True},
    "image_attention needs bridge=projection": {**GATED, "image_attention": "prefix"},
    "cross_attention_layers needs bridge=gated_cross_attention": {"cross_attention_layers": [0]},
    "cross_attention_scope needs bridge=gated_cross_attention": {"cross_attention_scope": "all"},
    "cross_attention_mlp needs bridge=gated_cross_attention": {"cross_attention_mlp": True},
    "heads tile the width of the resampler": {"token_compression": "resampler", "num_resampler_heads": 5},
    "an activation acts": {"projector": "affine", "projector_hidden_act": "relu"},
    "squares are of patches": {**CLIP, **POOL},
    "full means a class token": {"vision_feature_select_strategy": "full"},
    "squares tile the image": {**SQUARE, "compression_factor": 3},
    "squares join something": {**SQUARE, "compression_factor": 1},
    "text is generated": {"text_keys": {"is_causal": False}},
    "no other stack": {"text_keys": {"add_cross_attention": True}},
    "a recomputed cache knows no images": {"text": "longrope", "image_attention": "bidirectional"},
    "an image token is a token": {"image_token_id": -1},
    "an image token of the text": {**GATED, "image_token_id": 61},
    "image tokens are not pads": {"image_token_id": 0},
    "cross-attention stands before layers": {**GATED, "cross_attention_layers": [2]},
}


def test_every_rule_has_a_case():
    assert [rule.name for rule in VISION_RULES] == list(CASES) and len(CASES) == len(VISION_RULES)


@pytest.mark.parametrize("name", CASES)
def test_each_rule_refuses_with_its_own_text(name):
    rule = next(rule for rule in VISION_RULES if rule.name == name)
    start = rule.text.split("{")[0].split("=")[0]
    with pytest.raises(ValueError) as error:
        vision_config(**CASES[name])
    assert str(error.value).startswith(start), error.value


@pytest.mark.parametrize("layers", [[], [1, 0], [0, 0], [-1], [0, 2]])
def test_layers_that_are_none_are_refused(layers):
    with pytest.raises(ValueError, match="must be growing numbers of text layers, from 0 to 2 - 1"):
        vision_config(**GATED, cross_attention_layers=layers)


def test_longrope_goes_with_causal_images():
    assert vision_config("longrope").text_follows_original_length
    with pytest.raises(ValueError, match="bridge='gated_cross_attention'"):
        vision_config("longrope", **GATED)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image_delimters": True}, "no key 'image_delimters' .did you mean 'image_delimiters'"),
        ({"bridge": "gated"}, "bridge='gated' is unknown.*'projection', 'gated_cross_attention'"),
        ({"projector_hidden_act": "gelo"}, "projector_hidden_act='gelo' is unknown .did you mean 'gelu'"),
        ({"projector_bias": 1}, "projector_bias=1 is a int; it must be bool"),
        ({"vision_feature_layer": 4}, "vision_feature_layer=4 must be .* from -4 to 3"),
        ({"image_token_id": None}, "image_token_id is missing"),
        ({"vision_config": None}, "vision_config is missing: .*siglip_vision_model"),
        ({"vision_config": {"model_type": "swin"}}, "'swin' is not a supported vision tower.*'clip_vision_model'"),
        ({"text_config": {"model_type": "llama"}}, "text_config is of type 'llama'; give a VariantsConfig"),
        ({"text_config": {"hidden_sise": 3}}, "no key 'hidden_sise' .did you mean 'hidden_size'"),
        ({"text_config": native_config("vit")}, "text_config is of type 'vit'"),
    ],
)
def test_bad_keys_are_named(keys, message):
    with pytest.raises(ValueError, match=message):
        vision_config(**keys)


def test_parts_come_as_dicts_too(tmp_path):
    config = vision_config("mla", **GATED, cross_attention_layers=[1])
    spelled = VariantsVisionConfig(
        text_config=config.text_config.to_dict(),
        vision_config=config.vision_config.to_dict(),
        image_token_id=IMAGE_ID,
        **GATED,
        cross_attention_layers=[1],
    )
    assert spelled.to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    again = VariantsVisionConfig.from_pretrained(tmp_path)
    assert again.to_dict() | {"transformers_version": None} == config.to_dict() | {"transformers_version": None}
    assert isinstance(again.text_config, VariantsConfig) and again.get_text_config() is again.text_config
    assert (tmp_path / "modeling_variants_vision.py").is_file()


def test_tying_is_that_of_the_text():
    config = vision_config(text_keys={"tie_word_embeddings": True})
    assert config.tie_word_embeddings
    config.tie_word_embeddings = False
    assert config.text_config.tie_word_embeddings is False


def test_the_tables_of_the_modules_have_the_words():
    from hf_variants.modeling import modeling_variants_vision as model
    from hf_variants.modeling.image_memory import SCOPES
    from hf_variants.modeling.token_compression import COMPRESSIONS
    from hf_variants.modeling.vision_bridge import PROJECTOR_NORMS, PROJECTORS

    tables = {
        "bridge": model.READERS,
        "projector": PROJECTORS,
        "projector_norm": PROJECTOR_NORMS,
        "token_compression": COMPRESSIONS,
        "image_attention": model.IMAGE_BLOCKS,
        "cross_attention_scope": SCOPES,
    }
    assert all(set(table) == set(VISION_CHOICES[name]) for name, table in tables.items())
    assert set(VISION_CHOICES) - set(tables) == {"vision_feature_select_strategy"} and set(model.WIDTHS) == set(model.READERS)
