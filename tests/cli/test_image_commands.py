"""The commands about images, as a user types them."""

import json

import pytest
from PIL import Image

from hf_variants.cli.app import make_app
from hf_variants.modeling.processing_variants import VariantsProcessor
from hf_variants.vision_language.words import word_tokenizer
from tests.towers import own_config
from tests.vision import vlm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, tokenizer = tmp_path_factory.mktemp("vlm"), word_tokenizer()
    tower = own_config({"image_size": 8, "class_token": False})
    text_keys = {"vocab_size": len(tokenizer)}
    model = vlm(tower=tower, text_keys=text_keys, image_token_id=tokenizer.convert_tokens_to_ids("<image>"))
    model.save_pretrained(path)
    VariantsProcessor.for_model(model.config, tokenizer).save_pretrained(path)
    Image.new("L", (8, 8), 100).save(path / "grey.png")
    return path


def run(capsys, *words):
    make_app()(args=[str(word) for word in words], standalone_mode=False)
    return capsys.readouterr().out


def test_cost_as_json_and_as_a_plot(folder, capsys, tmp_path):
    words = ("--images", "0,2", "--compression", "none,pool,resampler", "--text-tokens", "3", "--measure")
    found = json.loads(run(capsys, "image-cost", folder, *words, "--plot", tmp_path / "cost.png", "--json"))
    assert [(cost["compression"], cost["images"]) for cost in found] == [
        (way, count) for way in ("none", "pool", "resampler") for count in (0, 2)
    ]
    assert [cost["length"] for cost in found] == [3, 2 * 6 + 3, 3, 2 * 3 + 3, 3, 2 * 3 + 3]
    assert all(cost["seconds"] > 0 and cost["total_flops"] == sum(cost["flops"].values()) for cost in found)
    assert Image.open(tmp_path / "cost.png").size[0] > 1000
    table = run(capsys, "image-cost", folder, "--images", "1")
    assert "tower" in table and "scores" in table


def test_attention_as_json_and_as_a_table(folder, capsys, tmp_path):
    words = ("image-attention", folder, "--text", "<image> what digit", "--image", folder / "grey.png")
    found = json.loads(run(capsys, *words, "--plot", tmp_path / "heads.png", "--json"))
    assert [reading["layer"] for reading in found] == [0, 1] and all(0 < r["image_share"] < 1 for r in found)
    assert (tmp_path / "heads.png").is_file()
    table = run(capsys, *words)
    assert "even share" in table and "attention gate" not in table


def test_mistakes_are_named(folder, capsys, tmp_path):
    for words, text in (
        (("image-cost", folder, "--compression", "poll"), "compression 'poll' is unknown.*did you mean 'pool'"),
        (("image-cost", folder, "--images", "1;2"), "must be whole numbers"),
        (("image-cost", folder, "--images", "-1"), "images=-1 must be at least 0"),
        (("image-cost", tmp_path), "holds no config"),
        (("image-attention", folder, "--text", "what", "--image", folder / "grey.png"), "0 '<image>'.*1 images were given"),
        (("image-cost", folder, "--plot", tmp_path / "x.gif"), "choose from .png"),
    ):
        with pytest.raises(ValueError, match=text):
            run(capsys, *words)
