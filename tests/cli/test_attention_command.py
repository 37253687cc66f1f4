"""`hf-variants attention` on models that read two inputs, as a user types it."""

import json

import pytest
import torch
from PIL import Image

from hf_variants import cli
from hf_variants.diagnostics import attention_reports
from hf_variants.modeling.processing_variants import VariantsProcessor
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from hf_variants.vision_language.words import word_tokenizer
from tests.convert.seq2seq_cases import native_model
from tests.towers import own_config
from tests.vision import BRIDGES, vlm

READ = ["the light shines in the darkness", "and the darkness has not", "in the beginning"]
WRITTEN = ["das Licht scheint in der Finsternis", "und die Finsternis", "im Anfang war das Wort"]


def run(capsys, *words):
    """(exit code, what was printed, what was said on stderr as one line)."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, " ".join(printed.err.split())


def save_pair(model, folder):
    tokenizer = train_tokenizer(READ * 9 + WRITTEN * 9, TokenizerSpec(vocab_size=300), objective="seq2seq")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder of a model that reads and writes, with files of lines and of pairs."""
    folder = tmp_path_factory.mktemp("pair")
    keys = {"vocab_size": 300, "decoder_start_token_id": 1, "eos_token_id": 0, "pad_token_id": 1}
    model = native_model(("bart", "plain"), **keys)
    save_pair(model, folder / "bart")
    for name, lines in (("read", READ), ("written", WRITTEN)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    records = [{"source": one, "target": other} for one, other in zip(READ, WRITTEN, strict=True)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    return folder


def test_lines_and_pairs_say_the_same_of_a_native_model(pair, capsys):
    words = ("attention", pair / "bart", "--rows", "3", "--json")
    code, printed, said = run(capsys, *words, "--text", pair / "read.txt", "--target", pair / "written.txt")
    assert code == 0, said
    found = json.loads(printed)
    assert list(found) == ["encoder", "decoder", "cross"]
    assert {kind: len(report["heads"]) for kind, report in found.items()} == {"encoder": 8, "decoder": 18, "cross": 18}
    assert run(capsys, *words, "--text", pair / "pairs.jsonl")[1] == printed
    # the numbers are those of the padded batch of the tokenizer's ids
    from transformers import AutoTokenizer

    from hf_variants.convert import from_native

    tokenizer, model = AutoTokenizer.from_pretrained(pair / "bart"), from_native(pair / "bart")
    inputs = tokenizer(READ, return_tensors="pt", padding=True)
    labels = tokenizer(WRITTEN, return_tensors="pt", padding=True)
    labels = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    expected = attention_reports(model, {name: inputs[name] for name in ("input_ids", "attention_mask")} | {"labels": labels})
    for kind, report in expected.items():
        assert found[kind]["heads"] == [pytest.approx(row, abs=1e-5) for row in report.heads]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pair", "images"])
def test_figures_of_several_kinds(name, pair, images, capsys, tmp_path):
    words = {
        "pair": (pair / "bart", "--text", pair / "pairs.jsonl"),
        "images": (images / "gated_all", "--text", images / "prompt.txt", "--image", images / "grey.png"),
    }[name]
    # the maps of the pair are drawn by the test of what it writes
    for extra in {"pair": [()], "images": [(), ("--maps", "1")]}[name]:
        code, _, said = run(capsys, "attention", *words, *extra, "--plot", tmp_path / "heads.png")
        assert code == 0 and Image.open(tmp_path / "heads.png").size[0] > 900, said


@pytest.mark.slow
def test_without_targets_the_model_writes(pair, capsys, tmp_path):
    words = ("attention", pair / "bart", "--text", pair / "read.txt", "--length", "8", "--maps", "2", "--plot")
    code, printed, said = run(capsys, *words, tmp_path / "maps.png")
    assert code == 0 and "cross-attention to the encoder on" in printed, said
    assert "are cut to 8 tokens; --length allows more" in printed and Image.open(tmp_path / "maps.png").size[0] > 1000
    found = json.loads(run(capsys, *words[:6], "--json")[1])
    from transformers import AutoTokenizer

    from hf_variants.convert import from_native

    tokenizer, model = AutoTokenizer.from_pretrained(pair / "bart"), from_native(pair / "bart")
    tokens = 0
    for line in READ:
        ids = tokenizer(line)["input_ids"]
        ids = torch.tensor([ids if len(ids) <= 8 else [*ids[:7], ids[-1]]])
        tokens += model.generate(input_ids=ids, max_new_tokens=8, do_sample=False).shape[1] - 1
    assert found["decoder"]["tokens"] == found["cross"]["tokens"] == tokens


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("images"), word_tokenizer()
    tower = own_config({"image_size": 8, "class_token": False})
    for name in ("projection", "gated_all"):
        keys = {"vocab_size": len(tokenizer), "bos_token_id": None}
        image = tokenizer.convert_tokens_to_ids("<image>")
        model = vlm(tower=tower, text_keys=keys, image_token_id=image, **BRIDGES[name])
        model.save_pretrained(folder / name)
        VariantsProcessor.for_model(model.config, tokenizer).save_pretrained(folder / name)
    Image.new("L", (8, 8), 100).save(folder / "grey.png")
    (folder / "prompt.txt").write_text("<image> what digit ? answer :\n")
    (folder / "text.txt").write_text("\n\n".join(["what digit ? answer : three"] * 20))
    return folder


def test_images_in_the_row_and_beside_it(images, capsys):
    words = ("--text", images / "prompt.txt", "--image", images / "grey.png")
    code, printed, said = run(capsys, "attention", images / "projection", *words, "--json")
    assert code == 0, said
    own = json.loads(printed)["heads"]
    readings = json.loads(run(capsys, "image-attention", images / "projection", "--text", "<image> what digit ? answer :",
                              "--image", images / "grey.png", "--json")[1])  # fmt: skip
    for reading in readings:
        masses = [row["image_mass"] for row in own if row["layer"] == reading["layer"]]
        assert reading["image_share"] == pytest.approx(sum(masses) / len(masses), abs=1e-6)
    code, printed, said = run(capsys, "attention", images / "gated_all", *words)
    assert code == 0 and "cross-attention to images" in printed, said
    words = ("attention", images / "projection", "--text", images / "text.txt", "--length", "16", "--rows", "99")
    code, printed, said = run(capsys, *words)
    assert code == 0 and "image mass" not in printed, said
    # twenty documents of six words, a start and an end
    assert "--rows 99:" in printed and "text.txt holds 10, and all of them are read" in " ".join(printed.split())


@pytest.mark.slow
def test_a_native_checkpoint_with_its_own_processor(capsys, tmp_path):
    from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from tests.convert.test_vision_families import TEXT, clip

    tokenizer = word_tokenizer()
    keys = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    image = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=clip(), text_config=LlamaConfig(**{**TEXT, **keys}), image_token_index=image)
    model = LlavaForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    pictures = CLIPImageProcessorPil(size=size, crop_size=size)
    strategy = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = LlavaProcessor(pictures, tokenizer, patch_size=4, image_token="<image>", **strategy)
    processor.save_pretrained(tmp_path)
    Image.new("RGB", (20, 16), (90, 10, 200)).save(tmp_path / "blue.png")
    (tmp_path / "prompt.txt").write_text("<image> what digit ? answer :")
    words = ("--image", tmp_path / "blue.png", "--json")
    code, printed, said = run(capsys, "attention", tmp_path, "--text", tmp_path / "prompt.txt", *words)
    assert code == 0, said
    found = json.loads(printed)["heads"]
    model.set_attn_implementation("eager")
    inputs = processor(images=Image.open(tmp_path / "blue.png"), text="<image> what digit ? answer :", return_tensors="pt")
    with torch.no_grad():
        attentions = model.eval()(**inputs, output_attentions=True).attentions
    is_image = inputs["input_ids"][0] == image
    last = int(is_image.nonzero().max())
    for row in found:
        mass = attentions[row["layer"]][0, row["head"], last + 1 :][:, is_image].sum(-1).mean()
        assert row["image_mass"] == pytest.approx(float(mass), abs=1e-5)
    code, printed, said = run(capsys, "image-attention", tmp_path, "--text", "<image> what digit ? answer :", *words)
    assert code == 0 and [reading["layer"] for reading in json.loads(printed)] == [0, 1], said


def test_options_that_mean_nothing_to_the_model_are_refused(pair, images, capsys, tmp_path):
    bart, picture, seeing = pair / "bart", images / "grey.png", images / "projection"
    (tmp_path / "short.txt").write_text("one line\n")
    (tmp_path / "gap.txt").write_text("one\n\nthree\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    prompt = ("--text", images / "prompt.txt")
    for words, reason in (
        ((bart, "--text", pair / "read.txt", "--image", picture), "reads no images; leave it out"),
        ((seeing, *prompt, "--image", picture, "--length", "9"), "--length 9 cuts rows of text"),
        ((seeing, *prompt, "--target", picture), "is no encoder-decoder"),
        ((bart, "--text", pair / "read.txt", "--target", tmp_path / "short.txt"), "has 3 lines and --target"),
        ((bart, "--text", pair / "read.txt", "--target", tmp_path / "gap.txt"), "line 2 of --target is blank"),
        ((bart, "--text", pair / "pairs.jsonl", "--target", pair / "read.txt"), "holds targets of its own"),
        ((bart, "--text", tmp_path / "empty.txt"), "holds no line with text"),
        ((bart, "--text", tmp_path / "latin.txt"), "is not UTF-8 text"),
        ((bart, "--text", tmp_path / "none.txt"), "none.txt' is not a file"),
        ((bart, "--text", pair / "read.txt", "--maps", "3", "--plot", tmp_path / "a.png"), "layers 0 to 2"),
        ((seeing, "--text", tmp_path / "empty.txt", "--image", picture), "is empty; write a prompt"),
        ((seeing, *prompt, "--image", tmp_path / "none.png"), "none.png, which does not exist"),
        ((seeing, *prompt, "--image", tmp_path / "gap.txt"), "gap.txt, which is no picture"),
        ((seeing, "--text", tmp_path / "short.txt", "--image", picture), "0 '<image>'"),
    ):
        code, _, said = run(capsys, "attention", *words)
        assert code == 2 and reason in said, (words, said)
