"""The vision-language member: images in the row and beside it, rows apart, labels, sizes, and what is refused."""

import pytest
import torch

from hf_variants import VariantsForCausalLM
from hf_variants.modeling.losses import IGNORE
from tests.modeling.helpers import TOLERANCE
from tests.towers import native_config, own_config, pixels
from tests.variants import TOGGLES, far
from tests.vision import BRIDGES, GATED, IMAGE, IMAGE_ID, MIXED, batch, each_alone, vision_config, vlm

COUNTS = [part.count(IMAGE) for part in MIXED]
# one text toggle of each way through attention, positions, masks and feed-forward
FAST = ("gqa", "mla_alternating", "chunked_nope", "learned_offset")
SLOW = ("sliding", "alibi_terms", "dynamic", "moe_groups")
TEXTS = (*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW))


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("text", TEXTS)
def test_rows_do_not_depend_on_the_batch(text, bridge):
    """Rows with two images, one and none, left-padded together, are what each is alone; padding on the right too."""
    model = vlm(text, **BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    together = logits(model, **inputs)
    right = batch(model, *MIXED, side="right")
    beside = logits(model, **right)
    for index, kept, alone in each_alone(inputs, COUNTS):
        expected = logits(model, **alone)[0]
        assert far(together[index, kept], expected) <= TOLERANCE
        assert far(beside[index, right["attention_mask"][index].bool()], expected) <= TOLERANCE


@pytest.mark.parametrize("bridge", [*BRIDGES, "prefix"])
@pytest.mark.parametrize("text", ["gqa", "mla_alternating", "sinks_softcap_sliding", "alibi_terms"])
def test_backends_agree(text, bridge):
    """In float64, where rounding is that of the softmax alone; in float32 within 1e-5 of the largest logit, for there two
    kernels of plain attention, each some 5e-6 from float64, are 9e-6 apart already.
    """
    keys = BRIDGES.get(bridge, {"image_attention": "prefix"})
    found = {}
    for backend in ("eager", "sdpa"):
        model = vlm(text, backend=backend, **keys)
        inputs = batch(model, *MIXED)
        if bridge == "prefix":
            inputs["token_type_ids"] = (torch.arange(inputs["input_ids"].shape[1]) > 20).long().expand(4, -1)
        for dtype in (torch.float32, torch.float64):
            inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
            found[backend, dtype] = logits(model.to(dtype), **inputs)[inputs["attention_mask"].bool()]
    largest = found["eager", torch.float64].abs().max()
    assert (found["eager", torch.float64] - found["sdpa", torch.float64]).abs().max() <= TOLERANCE / 4
    assert far(found["eager", torch.float32], found["sdpa", torch.float32]) <= TOLERANCE * largest


def test_an_image_is_its_features_between_two_delimiters():
    """L = sum(N_i + 2) + T, and the language model reads exactly [IMG], the projected patches and [/IMG]."""
    model = vlm()
    inputs = batch(model, MIXED[0])
    assert inputs["input_ids"].shape[1] == 2 * (9 + 2) + 5
    bridge = model.model.multi_modal_projector
    patches = model.model.vision_tower(inputs["pixel_values"])
    images = [torch.stack([bridge.delimiters.start, *bridge.projector(p), bridge.delimiters.end]) for p in patches]
    embeds = model.get_input_embeddings()
    text = embeds(torch.tensor([1, 2, 3, 4, 5]))
    spelled = torch.cat((text[:2], images[0], text[2:4], images[1], text[4:])).unsqueeze(0)
    assert far(logits(model, **inputs), logits(model, inputs_embeds=spelled)) == 0.0


def test_without_delimiters_an_image_is_its_patches():
    assert vision_config(image_delimiters=False).tokens_of_image() == 9
    assert "multi_modal_projector.delimiters.start" not in vlm(image_delimiters=False).model.state_dict()


@pytest.mark.parametrize("bridge", ["projection", "bidirectional", "gated"])
def test_images_of_different_sizes_in_one_batch(bridge):
    """Padded to one tensor, they are what each is alone: N_i differ."""
    model = vlm(tower="dinov2", **BRIDGES[bridge])
    sizes = [(12, 12), (8, 16), (12, 4)]
    images = [pixels(1, 3, *size) for size in sizes]
    counts = [model.config.tokens_of_image(*size) for size in sizes]
    ids = [token for n, text in zip(counts, (5, 6, 7), strict=True) for token in [IMAGE_ID] * n + [text]]
    padded = torch.zeros(3, 3, 12, 16)
    for index, image in enumerate(images):
        padded[index, :, : image.shape[2], : image.shape[3]] = image[0]
    inputs = {"input_ids": torch.tensor([ids]), "pixel_values": padded, "image_sizes": torch.tensor(sizes)}
    found = model.get_image_features(padded, inputs["image_sizes"])
    for image, read in zip(images, found, strict=True):
        assert far(read, model.get_image_features(image)[0]) <= TOLERANCE
    if bridge != "gated":
        assert counts == [9 + 2, 8 + 2, 3 + 2] == [len(read) for read in found]
    rows = {**inputs, "pixel_values": padded.unsqueeze(0), "image_sizes": inputs["image_sizes"].unsqueeze(0)}
    assert far(logits(model, **inputs), logits(model, **rows)) == 0.0


@pytest.mark.parametrize("tower", ["clip_vision_model", "siglip_vision_model", "vit", "dinov2", "own"])
@pytest.mark.parametrize("layer", ["last_hidden_state", -2, [0, -1]])
def test_every_tower_and_layer(tower, layer):
    config = own_config({"num_channels": 3, "image_size": 12}) if tower == "own" else native_config(tower)
    model = vlm(tower=config, vision_feature_layer=layer)
    inputs = batch(model, MIXED[0])
    changed = {**inputs, "pixel_values": inputs["pixel_values"] + 1}
    assert far(logits(model, **inputs), logits(model, **changed)) > 1e-3


def test_a_class_token_can_be_kept():
    model = vlm(tower="clip_vision_model", vision_feature_select_strategy="full")
    assert model.config.tokens_of_image() == 1 + 9 + 2
    inputs = batch(model, MIXED[0])
    first = model.model.vision_tower.vision_model(inputs["pixel_values"]).last_hidden_state[:, :1]
    read = torch.stack(model.get_image_features(inputs["pixel_values"]))[:, 1:2]
    assert far(read, model.model.multi_modal_projector.projector(first)) <= TOLERANCE
    model(**inputs)


@pytest.mark.parametrize("text", ["gqa", "moe_groups"])
def test_labels_at_images_count_for_nothing(text):
    model = vlm(text)
    inputs = batch(model, *MIXED, side="right")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE)
    masked = labels.masked_fill(labels == IMAGE_ID, IGNORE)
    out = model(**inputs, labels=labels, skip_logits=False)
    hand = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), masked[:, 1:].flatten(), ignore_index=IGNORE)
    assert far(out.loss, hand) <= TOLERANCE
    assert far(model(**inputs, labels=masked, num_items_in_batch=7).loss * 7, hand * (masked[:, 1:] != IGNORE).sum()) <= 1e-4
    with pytest.raises(ValueError, match="labels hold 32 image tokens"):
        model(**inputs, labels=labels, num_items_in_batch=7)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_every_parameter_is_trained_also_under_checkpointing(bridge):
    model = vlm("moe_groups", **BRIDGES[bridge]).train()
    inputs = batch(model, *MIXED)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE)
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(**inputs, labels=labels).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == dict(model.named_parameters()).keys()
    assert max(far(gradients[0][name], gradients[1][name]) for name in gradients[0]) <= TOLERANCE


@pytest.mark.parametrize("text", [name for name in TOGGLES if name in FAST or "emb" in name])
def test_gated_starts_as_the_language_model_bit_for_bit(text):
    model = vlm(text, **GATED, cross_attention_mlp=True)
    for name, parameter in model.named_parameters():
        if name.endswith("alpha"):
            torch.nn.init.zeros_(parameter)
    alone = VariantsForCausalLM(model.config.text_config).eval()
    alone.model.load_state_dict(model.model.language_model.state_dict())
    alone.lm_head.load_state_dict(model.lm_head.state_dict())
    inputs = batch(model, *MIXED)
    text_only = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(logits(model, **inputs), logits(alone, **text_only))


def test_gates_start_at_zero():
    from hf_variants import VariantsForImageTextToText

    fresh = VariantsForImageTextToText(vision_config(**GATED, cross_attention_mlp=True))
    gates = {name: p for name, p in fresh.named_parameters() if name.endswith("alpha")}
    assert len(gates) == 4 and all(not p.any() for p in gates.values())


@pytest.mark.parametrize("scope", ["last", "all"])
def test_gated_text_sees_the_images_before_it_and_no_others(scope):
    """One cross-attention before the last layer: a token's own state is all that an image can have changed."""
    model = vlm(text_keys={"num_hidden_layers": 1}, **GATED, cross_attention_scope=scope)
    model.model.language_model.layers[0].self_attn.o_proj.weight.data.zero_()
    inputs = batch(model, MIXED[0], MIXED[1], MIXED[2])
    base, ids = logits(model, **inputs), inputs["input_ids"]
    before = (ids == IMAGE_ID).long().cumsum(1)
    for image, (index, number) in enumerate([(0, 1), (0, 2), (2, 1)]):
        changed = inputs["pixel_values"].clone()
        changed[image] += 1
        moved = (logits(model, **{**inputs, "pixel_values": changed}) - base).abs().amax(-1)
        sees = before == number if scope == "last" else before >= number
        sees = sees & (torch.arange(3)[:, None] == index)
        assert (moved[sees] > 1e-4).all() and (moved[~sees] == 0).all()


@pytest.mark.parametrize("bridge", ["gated", "gated_all"])
def test_text_without_images_is_the_language_model(bridge):
    """Whatever the gates have learned: rows without an image, and tokens before the first, are as without any image."""
    model = vlm(**BRIDGES[bridge])
    inputs = batch(model, (1, 2, IMAGE, 3), (4, 5, 6, 7))
    found = logits(model, **inputs)
    plain = logits(model, input_ids=torch.tensor([[1, 2, 9, 9], [4, 5, 6, 7]]))
    assert far(found[1], plain[1]) == 0.0 and far(found[0, :2], plain[0, :2]) == 0.0
    assert far(found[0, 3], plain[0, 3]) > 1e-3


@pytest.mark.parametrize("bridge", BRIDGES)
def test_documents_packed_into_a_row(bridge):
    """Each document sees its own images alone."""
    model = vlm(**BRIDGES[bridge])
    parts = [(1, IMAGE, 2, 3), (4, 5), (6, IMAGE, IMAGE, 7)]
    spelled = [batch(model, part) for part in parts]
    lengths = [one["input_ids"].shape[1] for one in spelled]
    ids = torch.cat([one["input_ids"] for one in spelled], dim=1)
    images = pixels(3)
    positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)
    together = logits(model, input_ids=ids, position_ids=positions, pixel_values=images).split(lengths, dim=1)
    for document, pixel_values, one in zip(together, (images[:1], None, images[1:]), spelled, strict=True):
        given = {} if pixel_values is None else {"pixel_values": pixel_values}
        assert far(document, logits(model, input_ids=one["input_ids"], **given)) <= TOLERANCE


BAD_INPUTS = {
    "too few images": (
        lambda i: {"pixel_values": i["pixel_values"][:2]},
        "holds 33 image tokens, but the 2 images .* need 22",
    ),
    "too many images": (lambda i: {"pixel_values": pixels(4)}, "holds 33 image tokens, but the 4 images .* need 44"),
    "no images": (lambda i: {"pixel_values": None}, "holds 33 image tokens, but the 0 images"),
    "counts": (lambda i: {"image_counts": torch.tensor([1, 0, 2, 0])}, r"image_counts=\[1, 0, 2, 0\].* \[2, 0, 1, 0\]"),
    "counts and pixels": (lambda i: {"image_counts": torch.tensor([1, 0, 0, 0])}, "add up to 1 images, .* holds 3"),
    "shape": (lambda i: {"pixel_values": pixels(1)[0]}, r"pixel_values has the shape \(3, 12, 12\)"),
    "size": (lambda i: {"pixel_values": pixels(3, 3, 16, 16)}, "16 x 16 pixels"),
    "sizes": (lambda i: {"image_sizes": torch.tensor([[12, 12]] * 2)}, r"image_sizes has the shape \(2, 2\)"),
    "beyond": (lambda i: {"image_sizes": torch.tensor([[12, 13]] * 3)}, r"image_sizes\[0\]=\(12, 13\) does not lie within"),
    "both": (lambda i: {"inputs_embeds": torch.zeros(4, 27, 32)}, "give exactly one of input_ids and inputs_embeds"),
    "types": (
        lambda i: {"token_type_ids": torch.ones_like(i["input_ids"])},
        "token_type_ids has the type 1, which image_attention",
    ),
    "embeddings": (lambda i: {"input_ids": None, "inputs_embeds": torch.zeros(4, 27, 32)}, "pixel_values needs input_ids"),
}


@pytest.mark.parametrize("bridge", ["projection", "gated"])
@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_are_named(case, bridge):
    model = vlm(**BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    change, message = BAD_INPUTS[case]
    if bridge == "gated":
        message = message.replace("33", "3").replace("22", "2").replace("44", "4")
    with pytest.raises(ValueError, match=message):
        model(**{**inputs, **change(inputs)})


def test_a_row_that_cuts_an_image_is_named():
    """As many image tokens as there should be, but not where rows begin."""
    model = vlm()
    inputs = batch(model, (IMAGE, 1), (IMAGE, 2))
    inputs["input_ids"][0, 0], inputs["input_ids"][1, -1] = 5, IMAGE_ID
    with pytest.raises(ValueError, match="row 0 holds 10 image tokens, .* the next 1 need 11"):
        model(**inputs)
