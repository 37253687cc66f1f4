"""Push and pull against a double of the Hub: what is uploaded, the card in each repo, and that all of it loads again."""

import json

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load

from hf_variants.hub.card import BEGIN, END
from tests.hub.clean import room, run_script
from tests.hub.double import HubDouble
from tests.hub.push import EDITED, OWN_CARD
from tests.tokenizers_for_tests import HARD_TEXTS, byte_level_bpe

pytestmark = pytest.mark.slow
PULLED = {
    "private": ("AutoModelForCausalLM", "me/private", {}),
    "sharded": ("AutoModelForCausalLM", "me/sharded", {}),
    "branch_main": ("AutoModelForCausalLM", "me/branch", {}),
    "branch_dev": ("AutoModelForCausalLM", "me/branch", {"revision": "dev"}),
    "saved": ("AutoModelForSequenceClassification", "me/saved", {}),
    "trainer": ("AutoModelForCausalLM", "me/trainer", {}),
    "pair": ("AutoModelForSeq2SeqLM", "me/pair", {}),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The double after everything was pushed, with what the pushing and the pulling processes reported."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "expected").mkdir()
    for name in ("push", "pull", "pull_with_package", "stranger"):
        (folder / name).mkdir()
    loads = {
        name: {"auto": auto, "path": path, "kwargs": kwargs, "expected": str(folder / "expected" / f"{name}.safetensors")}
        for name, (auto, path, kwargs) in PULLED.items()
    }
    task = {"loads": loads, "tokenizers": {"private": ["me/private", HARD_TEXTS]}}
    clean = {
        **task,
        "configs": {"hub": ["me/config", str(folder / "config_again")]},
        "resave": {"private": str(folder / "resaved")},
        "adapters": {"adapter": ["me/adapter", str(folder / "expected" / "adapter.safetensors")]},
        "refused": {
            "untrusted": ["AutoModelForCausalLM", "me/sharded", {"trust_remote_code": False}],
            "absent": ["AutoModelForCausalLM", "me/absent", {"trust_remote_code": True}],
        },
    }
    stranger = {"refused": {"private": ["AutoModelForCausalLM", "me/private", {"trust_remote_code": True}]}}
    with HubDouble() as double:
        environment = double.environment(folder / "home_push")
        push_task = {"folder": str(folder / "expected")}
        double.pushed = run_script("push.py", push_task, folder / "push", environment, with_package=True)
        environment = double.environment(folder / "home_pull")
        double.pulled = run_script("load_clean.py", clean, folder / "pull", environment)
        environment = double.environment(folder / "home_package")
        known = {**task, "imports": ["hf_variants"]}
        double.known = run_script("load_clean.py", known, folder / "pull_with_package", environment, with_package=True)
        environment = double.environment(folder / "home_stranger", token=None)
        double.stranger = run_script("load_clean.py", stranger, folder / "stranger", environment)
        yield double


def card_of(hub, name, revision="main"):
    return ModelCard(hub.repos[name].files(revision)["README.md"].decode())


@pytest.mark.parametrize("name", PULLED)
def test_pulled_without_the_package(hub, name):
    assert hub.pulled["differences"][name] <= 1e-6
    assert hub.pulled["same_class"][name] and not hub.pulled["has_package"]


@pytest.mark.parametrize("name", PULLED)
def test_pulled_with_the_package_and_no_trust(hub, name):
    assert hub.known["differences"][name] <= 1e-6
    assert "[y/N]" not in hub.known["stdout"] + hub.known["stderr"]


def test_tokenizer_is_pulled(hub):
    tokenizer = byte_level_bpe()
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in HARD_TEXTS]
    assert hub.pulled["tokens"]["private"] == {"ids": expected, "decoded": HARD_TEXTS}
    assert hub.known["tokens"]["private"]["ids"] == expected


def test_private_stays_private(hub):
    assert hub.repos["me/private"].private and not hub.repos["me/sharded"].private
    assert "me/private" in hub.stranger["refused"]["private"]
    assert "trust_remote_code" in hub.pulled["refused"]["untrusted"]
    assert "me/absent" in hub.pulled["refused"]["absent"]


@pytest.mark.parametrize(
    "name", ["private", "sharded", "branch", "saved", "config", "trainer", "own", "edited", "tuned", "pair"]
)
def test_code_is_complete_in_every_repo(hub, name):
    files = hub.repos[f"me/{name}"].files()
    assert room() <= set(files)
    auto_map = json.loads(files["config.json"])["auto_map"]
    assert {value.split(".")[0] + ".py" for value in auto_map.values()} <= set(files)


def test_shards_and_branch(hub):
    shards = [name for name in hub.repos["me/sharded"].files() if name.startswith("model-")]
    assert len(shards) > 3 and "model.safetensors.index.json" in hub.repos["me/sharded"].files()
    main, dev = (load(hub.repos["me/branch"].files(name)["model.safetensors"]) for name in ("main", "dev"))
    assert (main["model.norm.weight"] != dev["model.norm.weight"]).all()


@pytest.mark.parametrize("name", ["private", "sharded", "branch", "saved", "edited", "tuned", "trainer", "pair"])
def test_every_repo_has_our_card(hub, name):
    card = card_of(hub, f"me/{name}")
    assert card.text.count(BEGIN) == card.text.count(END) == 1
    assert {"variants", "hf_variants"} <= set(card.data.tags) and card.data.library_name == "transformers"
    assert f'from_pretrained("me/{name}", trust_remote_code=True)' in card.text
    assert "More Information Needed" not in card.text and "/tmp" not in card.text


def test_card_of_a_branch_and_tags(hub):
    assert BEGIN in card_of(hub, "me/branch", "dev").text
    assert "small" in card_of(hub, "me/sharded").data.tags
    assert card_of(hub, "me/saved").data.pipeline_tag == "text-classification"


def test_card_names_its_origin_but_never_itself(hub):
    assert card_of(hub, "me/tuned").data.base_model == "me/private"
    assert "Weights last loaded from `me/private`" in card_of(hub, "me/tuned").text
    assert card_of(hub, "me/private").data.base_model is None


def test_card_of_the_user_is_left_alone(hub):
    assert hub.repos["me/own"].files()["README.md"].decode() == OWN_CARD


def test_card_with_words_of_the_user_is_refreshed(hub):
    card = card_of(hub, "me/edited")
    assert EDITED in card.text and card.data.license == "mit"
    assert "`attention_type` | `mla`" in card.text


def test_trainer_keeps_its_own_part(hub):
    card = card_of(hub, "me/trainer")
    assert "Training hyperparameters" in card.text and "the verses dataset" in card.text
    assert "`router_balance` | `bias`" in card.text
    assert room() <= set(hub.pushed["during"])
    assert {"last-checkpoint/model.safetensors", "last-checkpoint/trainer_state.json"} <= set(hub.pushed["during"])


def test_adapter_is_pulled_over_its_base(hub):
    files = set(hub.repos["me/adapter"].files())
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= files
    assert "model.safetensors" not in files
    assert hub.pulled["adapters"]["adapter"] <= 1e-6


def test_config_is_pulled(hub):
    assert hub.pulled["configs"]["hub"][0] == "VariantsForCausalLM"
