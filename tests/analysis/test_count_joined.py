"""Counts of encoder-decoders and of vision-language models equal the tensors and operations of real ones."""

import json

import pytest
import torch

from hf_variants import VariantsForSeq2SeqLM, VariantsSeq2SeqConfig, cli
from hf_variants.analysis import count
from tests.analysis.measured import counted
from tests.towers import pixels
from tests.variants import BASE, TOGGLES, randomise
from tests.vision import BRIDGES, IMAGE, row, vlm

SOURCE, TARGET = 9, 7
STACKS = {
    "gqa": ({}, {}),
    "other widths": ({"hidden_size": 24, "num_hidden_layers": 1}, {}),
    "mla": (TOGGLES["mla_q_lora"], TOGGLES["mla"]),
    "mla_qk_head": ({}, TOGGLES["mla_qk_head"]),
    "experts": (TOGGLES["moe"], TOGGLES["moe_shared"]),
    "gates": (TOGGLES["gate_head"], {**TOGGLES["gate_channel"], "norm_placement": "sandwich"}),
}
JOINS = {"own tables": {}, "one table": {"share_embeddings": True, "tie_word_embeddings": True}}


def pair(name, **keys):
    encoder, decoder = ({**BASE, **toggles} for toggles in STACKS[name])
    if keys.get("share_embeddings"):
        encoder["hidden_size"] = decoder["hidden_size"] = BASE["hidden_size"]
    config = VariantsSeq2SeqConfig(encoder=encoder, decoder=decoder, decoder_start_token_id=1, **keys)
    model = randomise(VariantsForSeq2SeqLM(config), 0).eval()
    model.set_attn_implementation("eager")
    for stack in (config.encoder, config.decoder):
        stack._experts_implementation = "eager"
    return config, model


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("name", STACKS)
def test_an_encoder_decoder(name, join):
    config, model = pair(name, **JOINS[join])
    facts = count(config, TARGET, pairs="all", encoder_length=SOURCE)
    assert facts["parameters"]["total"] == sum(weight.numel() for weight in model.parameters())
    row = facts["flops"][0]
    source, target = (torch.randint(2, 61, (1, length)) for length in (SOURCE, TARGET))
    options = {"input_ids": source, "decoder_input_ids": target}
    forward, out = counted(lambda: model(**options, use_cache=False))
    assert forward == pytest.approx(TARGET * row["forward"], rel=1e-9)
    backward, _ = counted(lambda: out.logits.square().sum().backward())
    assert backward == pytest.approx(TARGET * row["backward"], rel=1e-9)
    with torch.no_grad():
        states = model.get_encoder()(source)
        options = {"encoder_outputs": states, "use_cache": True}
        cache = model(decoder_input_ids=target[:, :-1], **options).past_key_values
        decoding, _ = counted(lambda: model(decoder_input_ids=target[:, -1:], past_key_values=cache, **options))
    assert decoding == pytest.approx(row["decode"], rel=1e-9)
    assert row["share_of_6n"] is None


CASES = [("gqa", bridge, "siglip_vision_model", {}) for bridge in BRIDGES]
CASES += [("gqa", "projection", tower, {}) for tower in ("clip_vision_model", "vit", "dinov2")]
CASES += [("mla", "gated", "siglip_vision_model", {}), ("gqa", "projection", "siglip_vision_model", {"projector": "affine"})]
CASES += [("gqa", "projection", "internvl_vision", {"projector": "gated", "projector_norm": "rmsnorm"})]


@pytest.mark.parametrize("text, bridge, tower, keys", CASES)
def test_a_vision_language_model(text, bridge, tower, keys):
    model = vlm(text, tower, backend="eager", **BRIDGES[bridge], **keys)
    config = model.config
    ids = torch.tensor([row(model, 1, IMAGE, 2, 3)])
    length = ids.shape[1]
    facts = count(config, length, pairs="all")
    assert facts["parameters"]["total"] == sum(weight.numel() for weight in model.parameters())
    counts = facts["flops"][0]
    model.model.vision_tower.vision_model.config._attn_implementation = "eager"
    forward, out = counted(lambda: model(input_ids=ids, pixel_values=pixels(1), use_cache=False))
    assert forward == pytest.approx(length * counts["forward"], rel=0.01)
    backward, _ = counted(lambda: out.logits.square().sum().backward())
    assert backward == pytest.approx(length * counts["backward"], rel=0.01)
    with torch.no_grad():
        cache = model(input_ids=ids[:, :-1], pixel_values=pixels(1), use_cache=True).past_key_values
        decoding, _ = counted(lambda: model(input_ids=ids[:, -1:], past_key_values=cache))
    assert decoding == pytest.approx(counts["decode"], rel=0.01)


def test_more_images_cost_more_towers():
    model = vlm()
    one, two = (count(model.config, 40, images=number)["flops"][0]["parts"] for number in (1, 2))
    assert two["image_vision_tower"]["forward"] == 2 * one["image_vision_tower"]["forward"]
    assert "image_vision_tower" not in count(model.config, 40, images=0)["flops"][0]["parts"]


def test_the_command_reads_their_folders(tmp_path, capsys):
    config, _ = pair("gqa")
    config.save_pretrained(tmp_path / "pair")
    vlm().config.save_pretrained(tmp_path / "images")
    for folder, words, part in (
        ("pair", ["--encoder-length", "5", 'decoder={"qk_norm": "head"}'], "encoder_attention"),
        ("images", ["--images", "2"], "image_vision_tower"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["count", str(tmp_path / folder), "--length", "40", "--json", *words])
        facts = json.loads(capsys.readouterr().out)
        assert stop.value.code == 0 and part in facts["flops"][0]["parts"]
        assert facts["parameters"]["non_embedding"] < facts["parameters"]["total"]


def test_what_cannot_be_counted():
    config, _ = pair("gqa")
    for options, match in (
        ({"encoder_length": 0}, "encoder_length=0 must be a whole number, at least 1"),
        ({"images": 1}, "images=1 needs a vision-language config"),
    ):
        with pytest.raises(ValueError, match=match):
            count(config, 4, **options)
    with pytest.raises(ValueError, match="length=4 is shorter than images=1 of"):
        count(vlm().config, 4)
    with pytest.raises(ValueError, match="encoder_length=3 is what an encoder reads"):
        count("llama-3-8b", 4, encoder_length=3)
