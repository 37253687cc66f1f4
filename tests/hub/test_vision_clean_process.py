"""Entry B19 for images: a saved folder of model and processor loads and generates where the package is not installed."""

import pytest

from tests.hub.clean import run_script
from tests.hub.double import HubDouble
from tests.hub.load_vision_clean import outputs
from tests.towers import own_config
from tests.vision import GATED
from tests.vision_language.test_processor import PICTURE, model_and_processor

OWN = own_config({"image_size": 12, "num_channels": 3})
FOLDERS = {
    "siglip": {"text": "mla_alternating"},
    "clip_resampler": {
        **{"tower": "clip_vision_model", "token_compression": "resampler"},
        **{"num_resampler_tokens": 3, "num_resampler_heads": 4, "image_attention": "bidirectional"},
    },
    "own_gated": {"tower": OWN, **GATED, "cross_attention_mlp": True, "text": "moe_groups"},
}


@pytest.mark.slow
def test_folders_load_without_the_package(tmp_path):
    picture, expected, folders = tmp_path / "picture.png", {}, {}
    PICTURE.save(picture)
    for name, keys in FOLDERS.items():
        model, processor = model_and_processor(**keys)
        expected[name], folders[name] = outputs(model, processor, picture), str(tmp_path / name)
        model.save_pretrained(folders[name])
        processor.save_pretrained(folders[name])
    found = run_script("load_vision_clean.py", {"folders": folders, "picture": str(picture)}, tmp_path)
    assert not found["has_package"] and set(found["base"].values()) == {"VariantsVisionModel"}
    for name in FOLDERS:
        for one in (found["outputs"][name], found["resaved"][name]):
            assert one["tokens"] == expected[name]["tokens"]
            assert one["logits"] == pytest.approx(expected[name]["logits"], abs=1e-5)


@pytest.mark.slow
def test_what_is_pushed_loads_without_the_package(tmp_path):
    picture = tmp_path / "picture.png"
    PICTURE.save(picture)
    for name in ("push", "pull"):
        (tmp_path / name).mkdir()
    with HubDouble() as hub:
        environment = hub.environment(tmp_path / "home_push")
        pushed = run_script("push_vision.py", {"picture": str(picture)}, tmp_path / "push", environment, with_package=True)
        task = {"folders": {"hub": "me/vlm"}, "picture": str(picture)}
        found = run_script("load_vision_clean.py", task, tmp_path / "pull", hub.environment(tmp_path / "home_pull"))
        card = hub.repos["me/vlm"].files()["README.md"].decode()
    assert not found["has_package"] and found["outputs"]["hub"]["tokens"] == pushed["expected"]["tokens"]
    assert found["outputs"]["hub"]["logits"] == pytest.approx(pushed["expected"]["logits"], abs=1e-5)
    assert "pipeline_tag: image-text-to-text" in card and "VariantsForImageTextToText" in card
