"""Memory plans of vision-language models: what autograd keeps of tower, bridge and text, frozen in part or not."""

import gc
import json
import weakref

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from hf_variants.analysis import count, plan_memory
from hf_variants.analysis.activations import layer_memory, outer_memory
from hf_variants.analysis.memory_batch import Batch
from hf_variants.modeling.vision_tower import tower_config
from hf_variants.vision_language.phases import freeze
from tests.towers import pixels
from tests.variants import TOGGLES, tiny
from tests.vision import BRIDGES, IMAGE, row, vlm

ALL = ["tower", "bridge", "text"]
OWN = {
    "model_type": "variants_image_encoder",
    **{"image_size": 12, "patch_size": 4, "num_channels": 3},
    "encoder": {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24},
}
# name -> tower, keys of the config, parts that are trained
CASES = {
    **{f"{bridge}, all": ("siglip_vision_model", BRIDGES[bridge], ALL) for bridge in BRIDGES},
    **{f"{bridge}, bridge": ("siglip_vision_model", BRIDGES[bridge], ["bridge"]) for bridge in BRIDGES},
    **{
        f"{bridge}, bridge and text": ("clip_vision_model", BRIDGES[bridge], ["bridge", "text"])
        for bridge in ("projection", "gated")
    },
    **{f"projection, {tower}": (tower, {}, ALL) for tower in ("clip_vision_model", "vit", "dinov2")},
    "text alone": ("vit", {}, ["text"]),
    "tower alone": ("vit", {}, ["tower"]),
    "the last layer left": ("clip_vision_model", {"vision_feature_layer": -2}, ALL),
    **{f"latent {bridge}": ("siglip_vision_model", BRIDGES[bridge], ALL) for bridge in ("projection", "gated_all")},
    "resampler": (
        "siglip_vision_model",
        {"token_compression": "resampler", "num_resampler_heads": 4, "num_resampler_tokens": 5},
        ALL,
    ),
}


def kept_by_autograd(model, rows, images, length, trains, autocast=False):
    """Bytes of the distinct tensors between forward and backward pass, and of pixels and ids, without the model's own."""
    freeze(model.train(), trains)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    held = []

    def pack(tensor):
        holder = Holder()
        holder.tensor = tensor
        held.append(weakref.ref(holder))
        return holder

    spelled = row(model, 1, *[IMAGE] * images)
    ids = torch.tensor([spelled + list(range(2, 2 + length - len(spelled)))] * rows)
    inputs = {"input_ids": ids, "pixel_values": pixels(rows * images), "labels": ids.clone()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(**inputs, use_cache=False)
    gc.collect()
    tensors = [holder().tensor for holder in held if holder() is not None] + [inputs["input_ids"], inputs["pixel_values"]]
    assert out.loss.requires_grad
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(size for place, size in sizes.items() if place not in own)


class Holder:
    """What a tensor is kept in: gone as soon as autograd lets go of it."""


def counted(config, rows, images, length, trains, dtype="float32"):
    """Activations of the loss phase."""
    plan = plan_memory(config, length=length, images=images, rows=rows, trains=trains, dtype=dtype, device="cpu")
    return next(phase for phase in plan["phases"] if phase["phase"] == "loss")["parts"]["activations"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_counted_is_what_autograd_keeps(name):
    tower, keys, trains = CASES[name]
    model = vlm("mla" if name.startswith("latent") else "gqa", tower, **keys)
    kept = kept_by_autograd(model, 2, 2, 40, trains)
    assert counted(model.config, 2, 2, 40, trains) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("name", TOGGLES)
def test_frozen_text_keeps_what_gradients_pass_through(name):
    config = tiny(name)
    model, held = VariantsForCausalLM(config).train().requires_grad_(False), {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    ids = torch.randint(1, config.vocab_size, (2, 12))
    embeds = model.get_input_embeddings()(ids).requires_grad_()

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held.setdefault(storage.data_ptr(), (storage.nbytes(), tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs_embeds=embeds, labels=ids)
    batch = Batch(2, 12, frozen=True)
    layers = sum(layer_memory(config, plan, batch).total for plan in config.layer_plan())
    kept = sum(size for size, _ in held.values()) + 8 * ids.numel()
    assert layers + sum(outer_memory(config, batch)) == pytest.approx(kept, rel=0.015)


def test_a_tower_of_the_family_is_counted_from_its_plan():
    model = vlm("gqa", tower_config(OWN))
    for trains in (ALL, ["bridge"]):
        kept = kept_by_autograd(model, 2, 2, 40, trains)
        assert counted(model.config, 2, 2, 40, trains) == pytest.approx(kept, rel=0.02)
    assert count(model.config, 40)["parameters"]["total"] == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("bridge", ["projection", "gated_all"])
@pytest.mark.parametrize("trains", [ALL, ["bridge"], ["bridge", "text"]])
def test_states_are_those_of_the_trained_parts(bridge, trains):
    model = vlm(**BRIDGES[bridge])
    trained, total = freeze(model, trains), count(model.config, 40)["parameters"]["total"]
    plan = plan_memory(model.config, length=40, trains=trains, dtype="float32")
    assert plan["parameters"] == total == sum(weight.numel() for weight in model.parameters())
    assert plan["held"] == {"weights": 4 * total, "optimizer": 8 * trained}
    assert plan["phases"][-1]["parts"]["gradients"] == 4 * trained


def test_the_walk_leaves_out_what_no_gradient_reaches():
    config = vlm(bridge="gated_cross_attention", cross_attention_layers=[1]).config
    names = lambda trains: [p["phase"] for p in plan_memory(config, length=40, trains=trains)["phases"]]  # noqa: E731
    assert names(["bridge"]) == [
        *("images", "loss", "backward, text layer 1", "backward, text cross-attention 1"),
        *("backward, text embedding", "backward, image bridge", "optimizer"),
    ]
    assert names(["text"])[-3:] == ["backward, text layer 0", "backward, text embedding", "optimizer"]
    assert "backward, image layer 0" in names(ALL) and "images" not in names(ALL)


@pytest.mark.slow
def test_more_images_take_more_and_checkpointing_less():
    config = vlm().config
    more, one = (counted(config, 2, images, 60, ALL) for images in (3, 1))
    assert more > one
    plain, lean = (plan_memory(config, length=60, images=3, checkpointing=each)["phases"][0] for each in (False, True))
    assert lean["parts"]["activations"] < plain["parts"]["activations"] / 2


@pytest.mark.slow
def test_devices_divide_the_text_alone_under_tensor_parallelism():
    config = vlm(text_keys={"num_key_value_heads": 2}.items()).config
    held = lambda **options: plan_memory(config, length=40, dtype="float32", **options)["held"]["weights"]  # noqa: E731
    total = 4 * count(config, 40)["parameters"]["total"]
    assert held() == held(devices=4, sharding="ddp") == total
    assert held(devices=4, sharding="fsdp") == total // 4
    images = 4 * sum(size for name, size in count(config, 40)["parameters"]["parts"].items() if name.startswith("image"))
    assert images < held(devices=2, tensor_parallel=2) < images + (total - images) * 0.6


def test_generating_counts_the_images_that_are_cached():
    options = {"purpose": "generate", "dtype": "bfloat16", "length": 40}
    gated = vlm(bridge="gated_cross_attention").config
    one, three = (plan_memory(gated, images=images, **options)["phases"] for images in (1, 3))
    assert three[1]["parts"]["cache"] > one[1]["parts"]["cache"] and one[0]["phase"] == "encoding"
    assert [phase["phase"] for phase in plan_memory(gated, images=0, **options)["phases"]] == ["prefill", "decoding"]


REFUSED = [
    ({"images": -1}, "images=-1 must be a whole number, at least 0"),
    ({"images": 1.5}, "images=1.5 must be"),
    ({"images": 9}, "length=40 has no room for text behind images=9"),
    ({"trains": ["vision"]}, r"trains=\['vision'\] must be a list of some of \['tower', 'bridge', 'text'\]"),
    ({"trains": []}, r"trains=\[\] must be"),
    ({"trains": ["bridge"], "images": 0}, "with images=0 nothing would be trained"),
    ({"purpose": "generate", "dtype": "bfloat16", "trains": ["text"]}, "means nothing to purpose='generate'"),
    ({"encoder_length": 8}, "there is none"),
    ({"devices": 2, "expert_parallel": 2}, "needs routed experts"),
]


@pytest.mark.parametrize("options, match", REFUSED)
def test_what_cannot_be_planned(options, match):
    with pytest.raises(ValueError, match=match):
        plan_memory(vlm().config, **{"length": 40, **options})


@pytest.mark.parametrize("options", [{"images": 1}, {"trains": ["text"]}])
def test_images_need_a_model_that_reads_them(options):
    with pytest.raises(ValueError, match="needs a vision-language config"):
        plan_memory(VariantsConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2), length=8, **options)


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    config = vlm().config
    (tmp_path / "vlm.json").write_text(json.dumps(config.to_dict()))
    words = ["plan-memory", str(tmp_path / "vlm.json"), "--length", "40", "--trains", "bridge", "--trains", "text"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--plot", str(tmp_path / "plan.png")])
    out = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and "trains bridge, text" in out and (tmp_path / "plan.png").stat().st_size > 1000
    with pytest.raises(SystemExit):
        cli.main([*words, "--json"])
    expected = [plan_memory(config, length=40, trains=["bridge", "text"], checkpointing=each) for each in (False, True)]
    assert json.loads(capsys.readouterr().out) == expected
