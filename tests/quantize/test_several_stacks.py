"""Models of several stacks in 4 bits: encoder-decoders, and the language models of vision-language models."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoModelForSeq2SeqLM

from hf_variants import VariantsForSeq2SeqLM
from hf_variants.jobs import QuantizeSpec
from hf_variants.jobs.quantization import quantize
from hf_variants.quantize import AwqLinear, Int8Linear, awq, dequantize, quantize_checkpoint, rtn
from hf_variants.quantize.batches import fingerprint_tensors, read_batches
from hf_variants.quantize.folding import apply_smoothing
from hf_variants.quantize.sites import layer_sites
from hf_variants.quantize.stacks import stacks_of
from hf_variants.quantize.store import LayerStore, leftovers
from hf_variants.training.spec_parsing import build_spec
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from tests.quantize.quantized import FITTING, FITTING_EXPERTS, FITTING_MLA, fitting
from tests.variants import build, draw_ids, far, tiny_pair
from tests.vision import BRIDGES, IMAGE, batch, vlm

WIDE = {**FITTING, "num_hidden_layers": 2}
T5 = {"norm_bias": False, "position_embedding_type": "relative", "relative_attention_num_buckets": 8}


def pair(encoder="gqa", decoder="gqa", **wider):
    return build(tiny_pair(encoder, decoder, wider={**WIDE, **wider}))


def image_model(text="gqa", bridge="projection", **keys):
    return vlm(text, text_keys={**WIDE, "max_position_embeddings": 64, **keys}, **BRIDGES[bridge])


def pairs(rows=8, source=14, target=10, seed=5):
    """Batches of an encoder-decoder, without pads."""
    return [{"input_ids": draw_ids(rows, source, seed=seed), "labels": draw_ids(rows, target, seed=seed + 1)}]


def images(model):
    """Batches of rows with and without images, padded: enough to calibrate on where an image is one token, too."""
    few = [batch(model, (1, 2, IMAGE, 3, 4), (6, 7, 8, 9)), batch(model, (IMAGE, 10, 11, 12), (5, IMAGE, 6), side="right")]
    return [*few, batch(model, (13, IMAGE, 14, 15), tuple(range(16, 32)))]


def data_of(model):
    return pairs() if model.config.is_encoder_decoder else images(model)


def logits_of(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits.float()


def inputs_of(model):
    given = data_of(model)[0]
    return {key: value for key, value in given.items() if key != "labels"} | (
        {"decoder_input_ids": given["labels"]} if model.config.is_encoder_decoder else {}
    )


# ---- smoothing ----
PLACEMENTS = {
    "pre": (2, 2),
    "sandwich": (2, 2),
    "parallel": (2, 2),
    "parallel_two_norms": (2, 2),
    "post": (1, 3),
    "post_ln": (1, 3),
    "pre_normed_residual": (1, 3),
}


def sites_in(model):
    places = [(stack, name, plan) for stack in stacks_of(model) for name, plan in stack.names()]
    return {name: layer_sites(stack.config, plan, name, model.get_submodule(name)) for stack, name, plan in places}


def smooth_everything(model):
    """Fold random scales between 1/4 and 4 into every site; returns their names."""
    names = []
    for found in sites_in(model).values():
        for site in found.sites:
            source = model.get_submodule(site.source).weight
            apply_smoothing(model, site, torch.exp2(torch.rand(source.shape[0]) * 4 - 2))
            names.append(site.name)
    return names


@pytest.mark.parametrize("name", [*PLACEMENTS, "mla", "mla_q_lora", "layernorm", "t5", "rmsnorm_unit_offset", "plain"])
def test_smoothing_keeps_the_logits_of_encoder_decoders(name):
    toggle = {"pre": "gqa", "t5": "gqa"}.get(name, name)
    model = build(tiny_pair(toggle, toggle, wider=T5 if name == "t5" else {}))
    inputs = {"input_ids": draw_ids(2, 11), "decoder_input_ids": draw_ids(2, 7, seed=2)}
    expected = logits_of(model, inputs)
    smoothed = smooth_everything(model)
    assert any("cross_attn" in site for site in smoothed) and any("encoder" in site for site in smoothed)
    assert far(logits_of(model, inputs), expected) < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", PLACEMENTS)
def test_cross_attention_has_sites_for_queries_and_values_alone(name):
    model = build(tiny_pair(decoder="gqa" if name == "pre" else name))
    found = next(sites for layer, sites in sites_in(model).items() if layer.startswith("model.decoder"))
    crossed = [site for site in found.sites if "cross_attn" in site.name]
    norms, values = ([site for site in crossed if site.kind == kind] for kind in ("norm", "linear"))
    assert len(crossed) == PLACEMENTS[name][0] and all(site.source.endswith("cross_attn.v_proj") for site in values)
    for site in norms:
        assert site.source.endswith("cross_attn_layernorm") and [len(group) for group in site.readers] == [1]
        assert site.readers[0][0].endswith("cross_attn.q_proj")
    assert any("k_proj, v_proj" in skip.name and "every layer" in skip.reason for skip in found.skipped)


# ---- written checkpoints ----
MODELS = {
    "encoder_decoder": lambda: pair(),
    "encoder_decoder_mla_experts": lambda: pair("gqa", "mla_q_lora", **FITTING_MLA, **FITTING_EXPERTS),
    "projection": lambda: image_model(),
    "projection_experts": lambda: image_model("moe_shared_gate", **FITTING_EXPERTS),
    "gated": lambda: image_model(bridge="gated"),
    "gated_all": lambda: image_model(bridge="gated_all"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """name -> (model, folder of the AWQ checkpoint, report), each made once."""
    made = {}

    def make(name):
        if name not in made:
            folder, model = tmp_path_factory.mktemp(name), MODELS[name]()
            model.save_pretrained(folder / "full")
            options = {"calibration": data_of(model), "eval_ids": data_of(model), "min_expert_tokens": 4}
            report = quantize_checkpoint(folder / "full", folder / "small", group_size=32, dtype=torch.float32, **options)
            made[name] = model, folder / "small", report
        return made[name]

    return make


QUICK = ("encoder_decoder",)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in QUICK)]
)
def test_a_checkpoint_is_written_loads_whole_and_saves_again(name, written, tmp_path):
    model, folder, report = written(name)
    auto = AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForImageTextToText
    # it was written after the logits of a reloaded model were compared with those of dense matrices
    assert report["max_logit_difference"] <= 1e-5 * 50
    assert set(report["perplexity"]) == {"full", "rtn", "awq", "how"} and report["bytes"] < report["source_bytes"]
    loaded, info = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert type(loaded) is type(model) and not any(info.values())
    packed = {n for n, m in loaded.named_modules() if isinstance(m, AwqLinear)}
    dense = {n for n, m in loaded.named_modules() if isinstance(m, torch.nn.Linear)}
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert dense <= set(settings["modules_to_not_convert"]) and not packed & set(settings["modules_to_not_convert"])
    inside = tuple(f"{stack.path}." for stack in stacks_of(model))
    assert packed and all(n.startswith(inside) for n in packed)
    assert not [n for n in dense if n.startswith(inside) and not n.endswith((".mlp.gate", ".shared_expert_gate"))]
    inputs = inputs_of(model)
    before = logits_of(loaded, inputs)
    card = (folder / "README.md").read_text()
    assert "## Quantization" in card and "| weights | awq, 4 bits |" in card
    assert f"| parameters | {model.num_parameters():,} |" in card
    tokens = report["calibration"]
    written_too = f" read, {tokens['decoder_tokens']} written" if model.config.is_encoder_decoder else ""
    assert f"| calibration tokens | {tokens['tokens']}{written_too} |" in card
    # outputs that have nothing in common would give about 2
    expected = logits_of(model, inputs)
    assert float((before - expected).square().mean() / expected.square().mean()) < 0.5
    plain = dequantize(loaded)
    assert not [m for m in plain.modules() if isinstance(m, AwqLinear)]
    assert far(logits_of(plain, inputs), before) < 1e-5 * max(1.0, before.abs().max().item())
    loaded.save_pretrained(tmp_path / "again")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder_decoder", pytest.param("gated_all", marks=pytest.mark.slow)])
def test_eight_bits_tell_their_own_numbers(name, tmp_path):
    model = MODELS[name]()
    model.save_pretrained(tmp_path / "full")
    report = quantize_checkpoint(
        tmp_path / "full", tmp_path / "q", method="int8", dtype=torch.float32, eval_ids=data_of(model)
    )
    loaded = type(model).from_pretrained(tmp_path / "q", dtype=torch.float32)
    packed = {n for n, m in loaded.named_modules() if isinstance(m, Int8Linear)}
    inside = tuple(f"{stack.path}." for stack in stacks_of(model))
    linears = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert packed == {n for n in linears if n.startswith(inside)} and len(packed) == report["quantized_modules"]
    for kind, whole in (("full", model), ("int8", loaded)):
        expected = torch.tensor(loss_of(whole, data_of(model))).exp()
        assert report["perplexity"][kind] == pytest.approx(float(expected), rel=1e-4), kind
    card = (tmp_path / "q" / "README.md").read_text()
    assert f"| parameters | {model.num_parameters():,} |" in card and f"| matrices in 8 bits | {len(packed)} |" in card
    loaded.save_pretrained(tmp_path / "again")
    first, second = (load_file(tmp_path / part / "model.safetensors") for part in ("q", "again"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def loss_of(model, batches):
    """Mean cross-entropy of what is scored, by the model's own loss."""
    total, count = 0.0, 0
    for inputs in read_batches(model, batches, "eval"):
        labels = inputs.get("labels", inputs["input_ids"])
        with torch.no_grad():
            loss = model(**{**inputs, "labels": labels}).loss
        if model.config.is_encoder_decoder:
            scored = int((labels != -100).sum())
        else:
            scored = int((labels[:, 1:] != model.config.image_token_id).sum())
        total, count = total + float(loss) * scored, count + scored
    return total / count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder_decoder", "projection", pytest.param("gated_all", marks=pytest.mark.slow)])
def test_perplexities_walk_beside_and_equal_those_of_whole_models(name, written):
    model, folder, report = written(name)
    found = {"full": model, "rtn": rtn(model, group_size=32, dtype=torch.float32).model}
    found["awq"] = type(model).from_pretrained(folder, dtype=torch.float32)
    for kind, whole in found.items():
        expected = torch.tensor(loss_of(whole, data_of(model))).exp()
        assert report["perplexity"][kind] == pytest.approx(float(expected), rel=1e-4), kind
    assert len({report["perplexity"][kind] for kind in found}) == 3


# ---- what is given ----
def test_pads_count_for_nothing():
    model = pair()
    alone = [{"input_ids": draw_ids(1, n, seed=n), "labels": draw_ids(1, n - 3, seed=n + 50)} for n in (19, 22)]
    padded = {key: torch.zeros(2, 22, dtype=torch.long) for key in ("input_ids", "attention_mask")}
    padded["labels"] = torch.full((2, 19), -100)
    for index, row in enumerate(alone):
        padded["input_ids"][index, : row["input_ids"].shape[1]] = row["input_ids"]
        padded["attention_mask"][index, : row["input_ids"].shape[1]] = 1
        padded["labels"][index, : row["labels"].shape[1]] = row["labels"]
    results = [awq(model, given, group_size=32, eval_ids=given) for given in (alone, [padded])]
    assert results[0].report.calibration == results[1].report.calibration
    assert results[0].report.perplexity == results[1].report.perplexity
    first, second = (result.codes for result in results)
    assert all(torch.equal(first[name].codes, second[name].codes) for name in first)


def test_text_alone_calibrates_a_vision_language_model():
    model = image_model()
    result = awq(model, draw_ids(4, 24).clamp(max=50), group_size=32, calibration_length=24)
    assert result.report.calibration["tokens"] == 96 and "pixel_values" in result.probe
    assert all(name.startswith("model.language_model.layers.") for name in result.names)


def test_batches_of_the_same_numbers_under_other_names_are_another_run():
    ids, other = draw_ids(2, 8), draw_ids(2, 8, seed=9)
    names = ("labels", "decoder_input_ids")
    stores = {LayerStore.beside("q", {}, fingerprint_tensors([{"input_ids": ids, name: other}])).directory for name in names}
    assert len(stores) == 2


@pytest.mark.parametrize("option", ["calibration_length", "batch_size"])
def test_what_cuts_token_ids_into_windows_is_refused_with_batches(option):
    with pytest.raises(ValueError, match=rf"\['{option}'\] cut token ids into windows"):
        awq(pair(num_hidden_layers=1), pairs(), group_size=32, **{option: 4})


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (fitting, lambda: draw_ids(3, 1), "eval_ids holds no token to score"),
        (fitting, lambda: [], "eval_ids holds no token to score"),
        (fitting, lambda: draw_ids(3, 8) + 1000, r"eval_ids\[0\].input_ids holds tokens from 10\d\d"),
        (pair, lambda: [{**pairs()[0], "labels": torch.full((8, 4), -100)}], "eval_ids holds no token to score"),
        (pair, lambda: [{**pairs()[0], "attention_mask": torch.zeros(8, 14)}], r"eval_ids\[0\] has a row that is all padding"),
    ],
)
def test_what_no_perplexity_can_be_measured_on_is_refused_before_a_layer(make, given, message):
    def never(*event):
        raise AssertionError(event)

    with pytest.raises(ValueError, match=message):
        rtn(make(num_hidden_layers=1), group_size=32, eval_ids=given(), progress=never)


def test_lists_of_token_ids_are_evaluated_as_tensors_are():
    model, ids = fitting(num_hidden_layers=1), draw_ids(3, 12)
    told = [rtn(model, group_size=32, eval_ids=given).report.perplexity for given in (ids, ids.tolist())]
    assert told[0] == told[1] and told[0]["how"] == "float32, 3 windows of 12 tokens"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: draw_ids(2, 16), "calibration_ids are token ids, but model_type='variants_seq2seq' reads and writes"),
        (lambda: [{"input_ids": draw_ids(2, 8)}], "has no decoder_input_ids; give decoder_input_ids \\(or labels"),
        (lambda: [{"labels": draw_ids(2, 8)}], "calibration_ids\\[0\\] has no input_ids"),
        (
            lambda: [{**pairs()[0], "pixel_values": torch.zeros(1)}],
            "\\['pixel_values'\\], which quantization does not read",
        ),
        (lambda: [{**pairs()[0], "input_ids": torch.full((8, 4), 999)}], "tokens from 999 to 999, outside"),
    ],
)
def test_batches_that_cannot_be_read_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        awq(pair(num_hidden_layers=1), given(), group_size=32)


# ---- resuming and adapters ----
class Stop(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_run_continues_in_the_decoder_and_ends_alike(written, tmp_path):
    model, folder, whole = written("encoder_decoder")
    model.save_pretrained(tmp_path / "full")
    options = {"calibration": pairs(), "eval_ids": pairs(), "group_size": 32, "min_expert_tokens": 4, "dtype": torch.float32}

    def stop(done, total, name):
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        quantize_checkpoint(tmp_path / "full", tmp_path / "q", progress=stop, **options)
    assert not (tmp_path / "q").exists() and len(leftovers(tmp_path / "q")) == 1
    seen = []
    report = quantize_checkpoint(tmp_path / "full", tmp_path / "q", progress=lambda *args: seen.append(args), **options)
    assert seen[0] == (1, 4, "model.encoder.layers.0") and seen[-1] == (4, 4, "model.decoder.layers.1")
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "q"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    assert report["perplexity"] == whole["perplexity"]


@pytest.mark.parametrize("name", ["encoder_decoder", "projection"])
def test_lora_trains_on_it_and_merges(name, written):
    peft = pytest.importorskip("peft")
    source, folder, _ = written(name)
    model = type(source).from_pretrained(folder, dtype=torch.float32)
    targets = r"model\.(encoder|decoder|language_model)\.layers\.\d+\.(self_attn|cross_attn|mlp)\.\w+_proj"
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    inputs = inputs_of(source)
    labels = inputs["decoder_input_ids" if source.config.is_encoder_decoder else "input_ids"]
    adapted(**inputs, labels=labels).loss.backward()
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad and p.grad is not None and bool(p.grad.any())}
    reached = {n.split(".layers.")[0].rpartition(".")[2] for n in trained}
    assert reached == ({"encoder", "decoder"} if source.config.is_encoder_decoder else {"language_model"})
    with torch.no_grad():
        expected = adapted.eval()(**inputs).logits
        merged = adapted.merge_and_unload()(**inputs).logits
    assert far(merged, expected) < 1e-4 * max(1.0, expected.abs().max().item())
    assert isinstance(source, VariantsForSeq2SeqLM) == source.config.is_encoder_decoder


# ---- the command ----
@pytest.mark.slow
def test_the_command_calibrates_an_encoder_decoder_on_pairs(tmp_path):
    words = ["one two three", "two three four", "three four five", "four five six"]
    records = [{"source": f"{a} {b}", "target": b} for a in words for b in words]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    tokenizer = train_tokenizer([record["source"] for record in records], TokenizerSpec(vocab_size=300), "seq2seq")
    config = tiny_pair(
        wider={**WIDE, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}, pad_token_id=tokenizer.pad_token_id
    )
    build(config).save_pretrained(tmp_path / "full")
    tokenizer.save_pretrained(tmp_path / "full")
    keys = {"model_path": str(tmp_path / "full"), "output_dir": str(tmp_path / "q"), "group_size": 32, "eval_rows": 2}
    given = {"pairs": {"source": str(tmp_path / "pairs.jsonl"), "eval_fraction": 0.25}, "calibration_rows": 8}
    with pytest.raises(ValueError, match="is an encoder-decoder: give pairs.source"):
        quantize(build_spec(QuantizeSpec, keys))
    with pytest.raises(ValueError, match="is an encoder-decoder, which calibration and data say nothing of"):
        quantize(build_spec(QuantizeSpec, {**keys, **given, "calibration": "text.txt"}))
    told = []
    result = quantize(build_spec(QuantizeSpec, {**keys, **given}), announce=told.append)
    assert "quantize: awq, calibrated on 8 pairs" in told and result["perplexity"]["how"].startswith("float32, 2 rows, ")
    report = json.loads((tmp_path / "q" / "quantization_report.json").read_text())
    assert report["calibration"]["rows"] == 8 and (tmp_path / "q" / "tokenizer.json").is_file()
