"""Entry B19: what is saved loads with trust_remote_code in a process that has no hf_variants, with equal outputs."""

import json

import pytest
from safetensors.torch import save_file

import hf_variants
from hf_variants.hub.composite_facts import auto_class_of
from hf_variants.registration import AUTO_CLASSES
from tests.hub.clean import room, run_script
from tests.hub.load_clean import outputs
from tests.tokenizers_for_tests import HARD_TEXTS, byte_level_bpe, metaspace_bpe
from tests.towers import own_config, pixels, randomise
from tests.variants import TOGGLES, build, draw_ids, tiny, tiny_pair

HEADS = {
    "causal": (hf_variants.VariantsForCausalLM, "mla_qk_head", {}),
    "base": (hf_variants.VariantsModel, "alternating", {}),
    "masked": (hf_variants.VariantsForMaskedLM, "sliding", {"is_causal": False}),
    "sequence_classification": (hf_variants.VariantsForSequenceClassification, "moe_groups", {"num_labels": 5}),
    "token_classification": (hf_variants.VariantsForTokenClassification, "alibi", {"num_labels": 3}),
    "question_answering": (hf_variants.VariantsForQuestionAnswering, "learned", {}),
}
# whatever is no member of VariantsConfig's own Auto classes: model and input
COMPOSITES = {
    "image_encoder": lambda: (randomise(hf_variants.VariantsImageEncoder(own_config())), pixels(2, 1, 8, 12)),
    "seq2seq": lambda: (build(pair()), draw_ids(2, 21)),
    "seq2seq_base": lambda: (build(pair(), hf_variants.VariantsSeq2SeqModel), draw_ids(2, 21)),
}
AUTO_NAME = {model_class: auto.__name__ for auto, model_class in AUTO_CLASSES.items()}


def pair():
    return tiny_pair("alternating", "mla_sliding", tie_word_embeddings=True, final_logits_bias=True)


def save(model, folder, ids=None):
    """Save under folder/model with its outputs beside; the spec that load_clean.py reads."""
    folder.mkdir()
    ids = draw_ids(2, 21) if ids is None else ids
    save_file({"ids": ids, "outputs": outputs(model.eval(), ids)}, folder / "expected.safetensors")
    model.save_pretrained(folder / "model")
    spec = {"auto": auto_class_of(model), "path": str(folder / "model")}
    return {**spec, "expected": str(folder / "expected.safetensors")}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """One clean process for everything here: starting one costs more than all its loads."""
    folder = tmp_path_factory.mktemp("clean")
    loads = {
        name: save(build(tiny(toggle, **more), model_class), folder / f"head_{name}")
        for name, (model_class, toggle, more) in HEADS.items()
    }
    loads |= {f"toggle_{name}": save(build(tiny(name)), folder / f"toggle_{name}") for name in TOGGLES}
    for name, make in COMPOSITES.items():
        model, inputs = make()
        loads[name] = save(model, folder / name, inputs)
    tiny("moe_mla").save_pretrained(folder / "config_only")
    tokenizers = {}
    for name, make in {"byte_level": byte_level_bpe, "metaspace": metaspace_bpe}.items():
        directory = folder / f"tokenizer_{name}"
        make().save_pretrained(directory)
        build(tiny("gqa")).save_pretrained(directory)
        tokenizers[name] = [str(directory), HARD_TEXTS]
    task = {
        "loads": loads,
        "resave": {name: str(folder / f"resaved_{name}") for name in [*HEADS, *COMPOSITES]},
        "configs": {"moe_mla": [str(folder / "config_only"), str(folder / "config_again")]},
        "tokenizers": tokenizers,
        "refused": {"untrusted": ["AutoModelForCausalLM", loads["causal"]["path"], {"trust_remote_code": False}]},
    }
    return {**run_script("load_clean.py", task, folder), "folder": folder}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_head_loads_without_the_package(clean, name):
    assert clean["differences"][name] == 0.0
    assert not clean["has_package"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGGLES)
def test_every_toggle_loads_without_the_package(clean, name):
    assert clean["differences"][f"toggle_{name}"] <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_saving_a_remote_model_keeps_code_and_auto_map(clean, name):
    assert clean["resaved"][name] == 0.0
    directory = clean["folder"] / f"resaved_{name}"
    assert {path.name for path in directory.glob("*.py")} == room()
    auto_map = json.loads((directory / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", *AUTO_NAME.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITES)
def test_every_composite_loads_without_the_package_and_again_when_resaved(clean, name):
    assert clean["differences"][name] == clean["resaved"][name] == 0.0
    directory = clean["folder"] / f"resaved_{name}"
    assert {path.name for path in directory.glob("*.py")} == room()


@pytest.mark.slow
def test_config_and_model_share_one_copy_of_the_classes(clean):
    assert set(clean["same_class"].values()) == {True}


@pytest.mark.slow
def test_a_config_saved_alone_carries_the_code_of_every_model(clean):
    expected = sum(p.numel() for p in build(tiny("moe_mla")).parameters())
    assert clean["configs"]["moe_mla"] == ["VariantsForCausalLM", expected]
    for name in ("config_only", "config_again"):
        assert {path.name for path in (clean["folder"] / name).glob("*.py")} == room()


@pytest.mark.slow
def test_code_is_not_run_untrusted(clean):
    assert "trust_remote_code" in clean["refused"]["untrusted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byte_level", "metaspace"])
def test_b42_tokenizer_beside_our_config_without_the_package(clean, name):
    tokenizer = {"byte_level": byte_level_bpe, "metaspace": metaspace_bpe}[name]()
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in HARD_TEXTS]
    assert clean["tokens"][name]["ids"] == expected
    if name == "byte_level":
        assert clean["tokens"][name]["decoded"] == HARD_TEXTS


def test_auto_map_names_every_auto_class():
    config = tiny("gqa")
    assert {name: value.split(".")[-1] for name, value in config.auto_map.items() if name != "AutoConfig"} == {
        auto.__name__: model_class.__name__ for auto, model_class in AUTO_CLASSES.items()
    }
    assert config.auto_map["AutoConfig"] == "configuration_variants.VariantsConfig"
    joined = tiny_pair().auto_map
    assert joined.pop("AutoConfig") == "configuration_variants_seq2seq.VariantsSeq2SeqConfig"
    names = {"AutoModel": "VariantsSeq2SeqModel", "AutoModelForSeq2SeqLM": "VariantsForSeq2SeqLM"}
    assert {name: value.split(".")[-1] for name, value in joined.items()} == names


def test_saved_folder_holds_the_room(tmp_path):
    build(tiny("gqa")).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == room()
