"""Vision towers give the patch features of their native model, for every layer that can be asked for."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from hf_variants import VariantsConfig, VariantsImageEncoder, VariantsImageEncoderConfig, VariantsModel
from hf_variants.modeling import image_rules
from hf_variants.modeling.built_config import built_fields
from hf_variants.modeling.vision_tower import LAST, TOWERS, build_tower, tower_config
from hf_variants.modeling.vocabulary import CHOICES
from tests.modeling.helpers import scaled_far
from tests.towers import NATIVE, native_config, own_config, pixels, randomise
from tests.variants import ENCODERS, TOGGLES

# states before those of the patches, as the native classes have them
CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0, "vit": 1, "dinov2": 1, "internvl_vision": 1}
CLASS_TOKENS["qianfan_ocr_vision"] = 1
# toggles that an image encoder refuses beside those with a field of text
OF_TEXT = {"moe_aux_loss"}


@pytest.fixture(scope="module")
def native():
    return {kind: randomise(NATIVE[kind][1](native_config(kind))) for kind in NATIVE}


def tower_of(native_model, feature_layer):
    tower = build_tower(native_model.config, feature_layer).eval()
    tower.vision_model.load_state_dict(native_model.state_dict(), strict=False)
    return tower


@pytest.mark.parametrize("layer", [-1, -2, 0, 3, LAST, [-2, 1], [1, -2, -1]], ids=str)
@pytest.mark.parametrize("kind", NATIVE)
def test_features_are_those_of_the_native_model(native, kind, layer):
    tower, images = tower_of(native[kind], layer), pixels()
    with torch.no_grad():
        found = tower(images)
        output = native[kind](images, output_hidden_states=True)
    states = (
        [output.last_hidden_state] if layer == LAST else [output.hidden_states[i] for i in torch.tensor([layer]).flatten()]
    )
    expected = torch.cat([state[:, CLASS_TOKENS[kind] :] for state in states], dim=-1)
    assert torch.equal(found, expected)
    assert found.shape == (2, tower.num_patches(12, 12), tower.width) == (2, 9, 24 * len(states))


@pytest.mark.parametrize("kind", [*NATIVE, "variants_image_encoder"])
def test_patches_are_row_by_row_and_none_is_lost(kind):
    """With the layers silenced, a feature is its own patch: each changed patch changes the feature of its place alone."""
    config = own_config({"image_size": 12, "num_channels": 3}) if kind not in NATIVE else native_config(kind)
    tower = build_tower(config, 0).eval()
    images = pixels(1)
    with torch.no_grad():
        before = tower(images)
        for row in range(3):
            for column in range(3):
                changed = images.clone()
                changed[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
                differs = (tower(changed) - before).abs().amax(dim=(0, 2)) > 1e-6
                assert differs.nonzero().flatten().tolist() == [3 * row + column]


def test_siglip_keeps_its_first_patch_and_builds_no_head():
    tower = build_tower(native_config("siglip_vision_model", vision_use_head=True))
    assert tower(pixels()).shape[1] == 9
    assert not any("head" in name for name, _ in tower.named_parameters())


def test_towers_that_interpolate_take_other_sizes_and_the_rest_refuse_them(native):
    images = pixels(1, 3, 8, 20)
    for kind in ("dinov2", "internvl_vision", "qianfan_ocr_vision"):
        tower = tower_of(native[kind], LAST)
        with torch.no_grad():
            assert torch.equal(tower(images), native[kind](images).last_hidden_state[:, 1:])
        assert tower.grid(8, 20) == (2, 5)
        with pytest.raises(ValueError, match="13 x 20 pixels is not a whole number of patches of 4 x 4"):
            tower(pixels(1, 3, 13, 20))
    for kind in ("clip_vision_model", "siglip_vision_model", "vit"):
        with pytest.raises(ValueError, match="8 x 20 pixels does not fit this tower, whose image_size is 12 x 12"):
            build_tower(native_config(kind))(images)


@pytest.mark.parametrize("kind", [*NATIVE, "variants_image_encoder"])
def test_channels_are_refused_with_both_numbers(kind):
    config = own_config({"num_channels": 3}) if kind not in NATIVE else native_config(kind)
    with pytest.raises(ValueError, match="has 1 channels, but the vision config says num_channels=3"):
        build_tower(config)(pixels(1, 1))


def test_bad_towers_and_layers_name_the_choices():
    with pytest.raises(ValueError, match=r"model_type='dinov3'.*did you mean 'dinov2'.*siglip_vision_model"):
        tower_config({"model_type": "dinov3", "hidden_size": 8})
    with pytest.raises(ValueError, match="names no model_type"):
        tower_config({"hidden_size": 8})
    with pytest.raises(ValueError, match="model_type='llama'"):
        build_tower(AutoConfig.for_model("llama"))
    for layer in (4, -5, [], [-1, 4], "last", True, 1.0):
        with pytest.raises(ValueError, match=r"vision_feature_layer=.*from -4 to 3"):
            build_tower(native_config("vit"), layer)


@pytest.mark.parametrize("kind", TOWERS)
def test_a_config_as_a_dict_gives_the_same_tower(kind):
    config = own_config() if kind not in NATIVE else native_config(kind)
    again = tower_config(config.to_dict())
    assert type(again) is type(config) and again.to_dict() == config.to_dict()
    assert tower_config(config) is config


def test_features_have_gradients_and_recorders_around_see_no_state_of_the_tower():
    tower = build_tower(own_config())
    tower(pixels(1, 1, 8, 12)).sum().backward()
    lost = {name for name, parameter in tower.named_parameters() if parameter.grad is None}
    assert lost == set()


# ---- our own image encoder ----
def of_text(name, toggle):
    return name in OF_TEXT or any(key in toggle for key in image_rules.TEXT_FIELDS)


# what belongs to text is refused, which is tested by name
OF_IMAGES = {name: toggle for name, toggle in {**TOGGLES, **ENCODERS}.items() if not of_text(name, toggle)}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_toggle_encodes_images(name):
    """An image encoder is the stack of its toggle on the patches, cut here by hand, behind the class token."""
    config = own_config(**OF_IMAGES[name])
    model = randomise(VariantsImageEncoder(config))
    stack = VariantsModel(config.encoder).eval()
    assert stack.load_state_dict(model.encoder.state_dict(), strict=False).missing_keys == ["embed_tokens.weight"]
    images = pixels(3, 1, 8, 12)
    patches = torch.nn.functional.unfold(images, 4, stride=4).transpose(1, 2)
    weight = model.patch_embedding.weight.flatten(1)
    rows = patches @ weight.T + model.patch_embedding.bias
    rows = torch.cat((model.class_token.embedding.expand(3, 1, -1), rows), dim=1)
    with torch.no_grad():
        found, expected = model(images).last_hidden_state, stack(inputs_embeds=rows).last_hidden_state
    assert found.shape == (3, 7, 24)
    assert scaled_far(found, expected) <= 1e-5


@pytest.mark.parametrize("patch_positions", ["sinusoidal_2d", "learned_2d"])
@pytest.mark.parametrize("class_token", [True, False])
def test_two_dimensional_positions_are_a_sum_of_row_and_column(patch_positions, class_token):
    image = {"patch_positions": patch_positions, "class_token": class_token, "image_size": [12, 20]}
    model = randomise(VariantsImageEncoder(own_config(image, position_embedding_type="none")))
    table = model.patch_positions(torch.zeros(1, 15, 24))[0].reshape(3, 5, 24)
    far = table[1:, 1:] + table[:-1, :-1] - table[1:, :-1] - table[:-1, 1:]
    assert far.abs().max() < 1e-6 and len(table.flatten(0, 1).unique(dim=0)) == 15
    if patch_positions == "sinusoidal_2d":
        angles = 2 * 10000.0 ** (-torch.arange(6) / 6)
        assert torch.allclose(table[2, 0], torch.cat((angles.sin(), angles.cos(), torch.zeros(6), torch.ones(6))))
    assert model(pixels(1, 1, 12, 20)).last_hidden_state.shape == (1, 15 + class_token, 24)


@torch.no_grad()
@pytest.mark.parametrize("scheme", CHOICES["position_embedding_type"])
def test_what_acts_on_scores_goes_with_a_table_of_patches(scheme):
    image = {"patch_positions": "learned_2d"}
    if scheme.startswith(("learned", "sinusoidal")):
        with pytest.raises(ValueError, match=f"encoder.position_embedding_type='{scheme}' would both add positions"):
            own_config(image, position_embedding_type=scheme)
        return
    found = []
    for kind in (scheme, "none"):
        model = randomise(VariantsImageEncoder(own_config(image, position_embedding_type=kind)))
        found.append(model(pixels(1, 1, 8, 12)).last_hidden_state)
    assert torch.equal(*found) is (scheme == "none")


def test_what_belongs_to_text_is_refused_by_name():
    values = {
        **{"final_logit_softcapping": 3.0, "logits_scaling": 2.0, "type_vocab_size": 2, "lm_head_act": "gelu"},
        **{"task_head": "dense", "classifier_act": "tanh", "classifier_pooling": "mean", "classifier_dropout": 0.1},
        **{"token_classifier_dropout": 0.1, "qa_dropout": 0.1, "position_source": "input_ids"},
        **{"embedding_multiplier_scope": "input_ids", "lm_head_transform_bias": False},
        **{"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
        **dict.fromkeys(("tie_word_embeddings", "lm_head_bias", "freeze_pad_embedding", "pooler"), True),
    }
    assert set(values) == set(image_rules.TEXT_FIELDS)
    rules = {rule.name: rule for rule in image_rules.image_rules(VariantsConfig)}
    for name, value in values.items():
        config = own_config()
        setattr(config.encoder, name, value)
        rule = rules[f"{name} belongs to text"]
        assert rule.broken(config) and f"encoder.{name}={value!r} has no effect" in rule.text.format(c=config)
    with pytest.raises(ValueError, match="encoder.logits_scaling=2.0 has no effect in an image encoder"):
        own_config(logits_scaling=2.0)


REFUSED = [
    ({"image_size": [8, 13]}, {}, r"image_size=\[8, 13\] is not a multiple of patch_size=4"),
    ({"image_size": 0}, {}, "image_size=0 must be a positive number"),
    ({"image_size": [8, 12, 4]}, {}, r"image_size=\[8, 12, 4\] must be"),
    ({"patch_size": [-4, 4]}, {}, r"patch_size=\[-4, 4\] must be"),
    ({"num_channels": 0}, {}, "num_channels=0 must be greater"),
    ({"num_channels": "3"}, {}, "num_channels='3' is a str"),
    ({"patch_positions": "2d"}, {}, r"patch_positions='2d' is unknown.*sinusoidal_2d"),
    ({"patch_positions": "learned_2d"}, {"position_embedding_type": "learned"}, "patch_positions=.*would both add positions"),
    ({"patch_positions": "sinusoidal_2d"}, {"embedding_size": 6}, "patch_positions=.*embedding_size=6 is no multiple of 4"),
    ({"patch_sise": 4}, {}, "no key 'patch_sise' .did you mean 'patch_size'"),
    ({}, {"is_causal": True}, "encoder.is_causal=True"),
    ({}, {"add_cross_attention": True}, "encoder.add_cross_attention=True"),
    ({}, {"vocab_size": 9}, "encoder.vocab_size=9 has no effect"),
    ({}, {"num_experts": 2, "router_balance": "aux_loss"}, "router_aux_loss_coef=0.001"),
    (
        {},
        {"position_embedding_type": "learned", "max_position_embeddings": 6},
        r"max_position_embeddings=6 is not the number of tokens of an image, 7",
    ),
]


@pytest.mark.parametrize("image, encoder, text", REFUSED, ids=[text[:30] for *_, text in REFUSED])
def test_impossible_encoders_are_refused(image, encoder, text):
    with pytest.raises(ValueError, match=text):
        own_config(image, **encoder)


def test_every_rule_of_images_is_broken_here():
    told = [text.split("=")[0].replace("encoder.", "").replace("\\", "") for *_, text in REFUSED]
    for rule in image_rules.image_rules(VariantsConfig):
        assert rule.name.endswith("belongs to text") or any(rule.text.startswith((name, f"encoder.{name}")) for name in told)


def test_an_encoder_that_is_no_config_is_refused():
    with pytest.raises(ValueError, match=r"encoder=7 must be None, a dict"):
        VariantsImageEncoderConfig(encoder=7)


def test_without_an_encoder_it_is_a_vit():
    config = VariantsImageEncoderConfig(image_size=32)
    assert (config.encoder.norm_type, config.encoder.position_embedding_type) == ("layernorm", "learned")
    assert config.encoder.max_position_embeddings == config.num_tokens == 5


def test_states_before_and_behind_the_final_norm_are_told_apart():
    model = randomise(VariantsImageEncoder(own_config()))
    with torch.no_grad():
        output = model(pixels(2, 1, 8, 12), output_hidden_states=True)
        assert torch.equal(model.encoder.norm(output.hidden_states[-1]), output.last_hidden_state)
    assert not torch.equal(output.hidden_states[-1], output.last_hidden_state)


def test_saved_and_loaded_it_computes_the_same(tmp_path):
    model = randomise(VariantsImageEncoder(own_config({"patch_positions": "sinusoidal_2d"}, num_experts=3)))
    images = pixels(2, 1, 8, 12)
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModel, VariantsImageEncoder):
        again = auto_class.from_pretrained(tmp_path).eval()
        assert isinstance(again, VariantsImageEncoder)
        with torch.no_grad():
            assert torch.equal(again(images).last_hidden_state, model(images).last_hidden_state)
    assert built_fields(AutoConfig.from_pretrained(tmp_path).encoder) == built_fields(model.config.encoder)
    assert "image-feature-extraction" in (tmp_path / "README.md").read_text()


def test_a_toggle_changed_after_the_build_is_not_saved(tmp_path):
    model = VariantsImageEncoder(own_config())
    model.config.encoder.norm_placement, model.config.patch_bias = "sandwich", False
    model.save_pretrained(tmp_path)
    saved = AutoConfig.from_pretrained(tmp_path)
    assert (saved.encoder.norm_placement, saved.patch_bias) == ("pre", True)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_the_backend_reaches_the_stack(backend):
    config = own_config()
    model = AutoModel.from_config(config, attn_implementation=backend)
    assert model.encoder.config._attn_implementation == backend


def test_activation_checkpointing_keeps_the_gradients():
    model = randomise(VariantsImageEncoder(own_config())).train()
    images, grads = pixels(2, 1, 8, 12), []
    for switch in (None, model.activation_checkpointing_enable):
        if switch:
            switch()
        model.zero_grad()
        model(images).last_hidden_state.square().sum().backward()
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*grads)
