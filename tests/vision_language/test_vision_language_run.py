"""The vision-language recipe: phases train what they name alone, a finished run is not run again, and what is saved answers
the same.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_variants.jobs import VisionLanguageSpec, vision_language
from hf_variants.training.spec_parsing import build_spec, load_spec
from hf_variants.vision_language.answering import accuracies, answers, pictures_of
from hf_variants.vision_language.batches import IGNORE, QuestionCollator, maker_of
from hf_variants.vision_language.digits import load_digits
from hf_variants.vision_language.phases import PREFIXES, part_of
from hf_variants.vision_language.questions import IMAGE
from hf_variants.vision_language.run import EVAL_SEED, side_of
from hf_variants.vision_language.specs import check_spec
from hf_variants.vision_language.words import word_tokenizer

BRIDGES = {
    "projection": {"bridge": "projection", "token_compression": "pool"},
    "gated": {"bridge": "gated_cross_attention", "cross_attention_mlp": True},
}


def phase(name, reads, trains, **more):
    return {"name": name, "reads": reads, "trains": trains, "steps": 3, "batch_size": 6, "learning_rate": 0.01, **more}


def spec_of(folder, kind="projection", **more):
    encoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "position_embedding_type": "learned"}
    keys = {
        "output_dir": str(folder),
        "tower": {"image_size": 8, "patch_size": 4, "class_token": False, "encoder": encoder},
        "text": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        "bridge": BRIDGES[kind],
        "data": {"eval_examples": 15},
        "examples": 4,
        "measure_every": 2,
        "trainer": {"logging_steps": 1},
        "phases": [
            phase("tower", "labels", ["tower"]),
            phase("words", "words", ["text"]),
            phase("bridge", "images", ["bridge"]),
        ],
    }
    return build_spec(VisionLanguageSpec, {**keys, **more})


@pytest.fixture(scope="module", params=BRIDGES)
def finished(request, tmp_path_factory):
    spec = spec_of(tmp_path_factory.mktemp(request.param), request.param)
    return spec, vision_language(spec, lambda text: None)


def weights_behind(spec, number):
    folder = next((Path(spec.output_dir) / "phases").glob(f"{number}-*"))
    return AutoModelForImageTextToText.from_pretrained(folder).state_dict()


def test_a_phase_trains_what_it_names_alone(finished):
    spec, _ = finished
    for number, trained in ((2, "text"), (3, "bridge")):
        before, after = weights_behind(spec, number - 1), weights_behind(spec, number)
        changed = {part_of(name) for name in before if not torch.equal(before[name], after[name])}
        assert changed == {trained}
    assert {part_of(name) for name in before} == set(PREFIXES)


def test_results_are_told_and_the_model_answers_the_same_from_its_folder(finished):
    spec, result = finished
    assert [done["name"] for done in result["phases"]] == ["tower", "words", "bridge"]
    assert [len(done["log"]) for done in result["phases"]] == [3, 3, 3]
    assert [line["step"] for line in result["phases"][2]["measures"]] == [0, 2]
    assert len(result["accuracies"]) == 3 and all(found["answers"] == 15 for found in result["accuracies"].values())
    model = AutoModelForImageTextToText.from_pretrained(result["model"]).eval()
    processor = AutoProcessor.from_pretrained(result["model"])
    _, held_out = load_digits(spec.data.held_out, spec.data.split_seed)
    examples = maker_of(spec, held_out, True, EVAL_SEED).take(15)
    given = answers(model, processor, examples, pictures_of(held_out, side_of(model.config)), batch_size=4)
    assert accuracies(examples, given) == result["accuracies"]["held-out images, held-out phrases"]
    by_prompt = {example.prompt: answer for example, answer in zip(examples, given, strict=True)}
    assert all(by_prompt[row["prompt"]] == row["given"] for row in result["examples"])
    gates = [reading["attention_gate"] for reading in result["attention"]]
    assert all((gate is None) == (spec.bridge["bridge"] == "projection") for gate in gates)
    assert json.loads((Path(spec.output_dir) / "results.json").read_text()) == result
    page = (Path(spec.output_dir) / "report.html").read_text()
    assert "held-out images, held-out phrases" in page and "Questions, images, answers" in page


def test_pixels_of_training_are_those_of_the_processor(finished):
    spec, result = finished
    processor, (train, _) = AutoProcessor.from_pretrained(result["model"]), load_digits()
    maker = maker_of(spec, train, False, 1)
    numbered = [(number, maker[number]) for number in range(6)]
    model = AutoModelForImageTextToText.from_pretrained(result["model"])
    collate = QuestionCollator(word_tokenizer(), train, 8, model.config.tokens_of_image(), answered=False)
    pictures = pictures_of(train, 8)
    examples = [example for _, example in numbered]
    theirs = processor(
        images=[pictures[index] for example in examples for index in example.images],
        text=[example.prompt for example in examples],
        padding=True,
        return_tensors="pt",
    )
    ours = collate(numbered)
    assert torch.equal(ours["input_ids"], theirs["input_ids"]) and torch.equal(
        ours["attention_mask"], theirs["attention_mask"]
    )
    # a picture has 8 bits
    assert (ours["pixel_values"] - theirs["pixel_values"]).abs().max() <= 1 / 255 + 1e-6


def test_a_finished_run_is_skipped_and_another_one_refused(finished):
    spec, result = finished
    said = []
    assert vision_language(spec, said.append) == result
    assert any("already finished" in line for line in said)
    changed = spec_of(spec.output_dir, next(n for n, keys in BRIDGES.items() if keys == spec.bridge), seed=5)
    with pytest.raises(ValueError, match=r"holds the stage 'vision-language' of other settings \(seed: 0 -> 5\)"):
        vision_language(changed, said.append)


def test_a_run_goes_on_behind_its_last_finished_phase(finished, tmp_path):
    """Killed in its last phase, a run ends with the weights of the unbroken one; the phases before are not trained again."""
    spec, result = finished
    again = tmp_path / "run"
    shutil.copytree(spec.output_dir, again)
    for path in (again / "stage.json", next(again.glob("phases/3-*/stage.json"))):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "status": "started", "result": None}))
    said = []
    kind = next(name for name, keys in BRIDGES.items() if keys == spec.bridge)
    found = vision_language(spec_of(again, kind), said.append)
    assert [line.split(":")[0] for line in said if "already finished" in line] == ["tower", "words"]
    assert sum(line.startswith("phase ") for line in said) == 1
    assert found["accuracies"] == result["accuracies"]
    before, after = (AutoModelForImageTextToText.from_pretrained(f["model"]).state_dict() for f in (result, found))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_labels_stand_on_the_answer_alone():
    train, _ = load_digits()
    tokenizer = word_tokenizer()
    collate = QuestionCollator(tokenizer, train, 8, 3, jiggled=True, seed=2)
    maker = maker_of(spec_of("x"), train, False, 1)
    numbered = [(number, maker[number]) for number in range(5, 12)]
    batch = collate(numbered)
    for row, (_, example) in enumerate(numbered):
        labels, ids = batch["labels"][row], batch["input_ids"][row]
        assert tokenizer.decode(labels[labels != IGNORE]).split() == [example.answer, "<eos>"]
        assert torch.equal(labels[-2:], ids[-2:]) and (labels[:-2] == IGNORE).all()
        assert (ids == tokenizer.convert_tokens_to_ids(IMAGE)).sum() == 3 * len(example.images)
    assert len(batch["pixel_values"]) == sum(len(example.images) for _, example in numbered)
    assert torch.equal(batch["pixel_values"], collate(numbered)["pixel_values"])
    other = QuestionCollator(tokenizer, train, 8, 3, jiggled=True, seed=3)(numbered)
    assert not torch.equal(batch["pixel_values"], other["pixel_values"])


REFUSED = [
    ({"phases": []}, "phases is empty"),
    ({"phases": [phase("a", "words", ["tower"])]}, r"phase 'a': trains=\['tower'\] must be some of \['text'\]"),
    ({"phases": [phase("a", "images", [])]}, r"phase 'a': trains=\[\]"),
    ({"phases": [phase("a", "images", ["bridge"]), phase("a", "images", ["text"])]}, "each must have its own"),
    ({"phases": [phase("a/b", "images", ["bridge"])]}, "phase name='a/b' names a folder"),
    ({"text": {"vocab_size": 9}}, "text.vocab_size=9 is decided by the task"),
    ({"tower": {"num_channels": 3}}, "tower.num_channels=3 is decided by the task"),
    ({"bridge": {"image_token_id": 3}}, "bridge.image_token_id=3 is decided by the task"),
    ({"data": {"kinds": ["colour"]}}, r"data.kinds=\['colour'\]"),
    ({"examples": 16}, "examples=16 must be at most data.eval_examples=15"),
]


@pytest.mark.parametrize("keys, text", REFUSED, ids=[text[:24] for _, text in REFUSED])
def test_recipes_that_cannot_run_are_refused(keys, text):
    with pytest.raises(ValueError, match=text):
        check_spec(spec_of("x", **keys))


def test_what_configs_and_trainer_refuse_is_refused_before_training(tmp_path):
    for keys, text in (
        ({"bridge": {"bridge": "glue"}}, "bridge='glue' is unknown"),
        ({"tower": {"image_size": [8, 16], "patch_size": 4}}, "is not square"),
        ({"trainer": {"max_steps": 3}}, r"trainer.max_steps=3 differs from phase to phase; use phases\[\].steps"),
        ({"trainer": {"weight_dekay": 3}}, "did you mean 'weight_decay'"),
    ):
        with pytest.raises(ValueError, match=text):
            vision_language(spec_of(tmp_path / "run", **keys), lambda line: None)
        assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize("recipe", ["vision_language.yaml", "vision_language/gated_cross_attention.yaml"])
def test_shipped_recipes_are_whole(recipe):
    spec = load_spec(VisionLanguageSpec, f"recipes/{recipe}")
    check_spec(spec)
    assert {part for each in spec.phases for part in each.trains} == set(PREFIXES)


@pytest.mark.slow
@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_short_run_learns_to_read_digits(bridge, tmp_path):
    """One kind of question and minutes less than the recipe: far above the 10 % of a guess, on unseen images.

    Gated cross-attention begins at gates of zero, and takes more steps to open them.
    """
    recipe = load_spec(VisionLanguageSpec, "recipes/vision_language.yaml")
    steps = {"reads": "images", "batch_size": 64, "learning_rate": 0.003, "steps": {"projection": 60, "gated": 150}[bridge]}
    phases = [
        phase("tower", "labels", ["tower"], steps=150, batch_size=128, learning_rate=0.003),
        phase("words", "words", ["text"], steps=40, batch_size=32, learning_rate=0.003),
        {"name": "bridge", "trains": ["bridge"], **steps},
        {"name": "all", "trains": ["tower", "bridge", "text"], **steps},
    ]
    data = {"eval_examples": 200, "kinds": ["digit"]}
    keys = {"tower": recipe.tower, "text": {**recipe.text, "num_hidden_layers": 2}, "data": data, "phases": phases}
    result = vision_language(spec_of(tmp_path, bridge, **keys, measure_every=0), lambda line: None)
    assert result["accuracies"]["held-out images, held-out phrases"]["all"] >= 0.8
    assert result["alignment"]["cka"] > 0.3
    picture = Image.new("L", (8, 8))
    processor = AutoProcessor.from_pretrained(result["model"])
    assert processor(images=picture, text=f"{IMAGE} what digit ?", return_tensors="pt")["pixel_values"].shape == (1, 1, 16, 16)
