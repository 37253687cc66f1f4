"""Attention of several kinds against the weights that the native classes themselves return, counted another way."""

import math

import pytest
import torch

from hf_variants.convert import from_native
from hf_variants.diagnostics import attention_report, attention_reports
from tests import variants
from tests.convert.seq2seq_cases import CASES, native_model, rows
from tests.convert.test_vision_families import inputs_of, native_of
from tests.vision import BRIDGES, IMAGE, IMAGE_ID, batch, vlm

SINK = 2
FAST = (("t5", "tied and scaled"), ("bart", "plain"))
OTHERS = [
    case for case in CASES if case not in FAST and case[1] in ("plain", "scaled", "tied", "shared", "alike", "tied and scaled")
]
IMAGES = ("llava", "llava_siglip_sliding", "paligemma", "idefics3", "gemma3", "internvl")


def by_hand(attentions, queries, keys, visible, images=None):
    """[layer][head] -> numbers of native weights, row by row and query by query, pads left out.

    queries, keys: lists of the places of each row that count; visible: (query, key) -> whether the mask lets it through.
    """
    found = []
    for layer in attentions:
        found.append([])
        for head in range(layer.shape[1]):
            sums = {"entropy": [], "bound": [], "sink_mass": [], "image_mass": []}
            for row, places in enumerate(queries):
                for query in places:
                    seen = [key for key in keys[row] if visible(query, key)]
                    weights = layer[row, head, query].double()
                    assert math.isclose(float(weights[seen].sum()), 1, abs_tol=1e-5)
                    if images and any(key in images[row] and key < query for key in seen):
                        sums["image_mass"].append(float(weights[images[row]].sum()))
                    if len(seen) > 1:
                        sums["entropy"].append(float(torch.special.entr(weights[seen]).sum()))
                        sums["bound"].append(math.log(len(seen)))
                        sums["sink_mass"].append(float(weights[keys[row][:SINK]].sum()))
            found[-1].append({name: sum(values) / len(values) for name, values in sums.items() if values})
    return found


def compare(report, expected, attentions, queries, keys):
    assert len(report.heads) == sum(map(len, expected)) and report.tokens == sum(map(len, queries))
    for row in report.heads:
        for name, value in expected[row["layer"]][row["head"]].items():
            assert row[name] == pytest.approx(value, abs=2e-5), (report.kind, row["layer"], row["head"], name)
        layer = attentions[row["layer"]].double()
        maps = [
            torch.cat([layer[index, head][places][:, keys[index]].flatten() for index, places in enumerate(queries)])
            for head in range(layer.shape[1])
        ]
        others = [torch.cosine_similarity(maps[row["head"]], other, dim=0) for i, other in enumerate(maps) if i != row["head"]]
        assert row["redundancy"] == pytest.approx(float(max(others)), abs=2e-5)


def places_of(mask):
    return [row.nonzero().flatten().tolist() for row in mask]


@pytest.mark.parametrize(
    "case, side",
    [
        *((case, "right") for case in FAST),
        *(pytest.param(case, "right", marks=pytest.mark.slow) for case in OTHERS),
        # absolute positions of the others are counted from the pads natively, from the first token here
        *(pytest.param(case, "left", marks=pytest.mark.slow) for case in CASES if case[1] in ("tied and scaled", "alike")),
    ],
)
def test_three_kinds_are_those_of_the_native_class(case, side):
    native = native_model(case)
    inputs = rows(native.config, side=side)
    labels = rows(native.config, lengths=(5, 8, 3), width=8, seed=2)
    written = torch.cat((torch.full((3, 1), 5), labels["input_ids"][:, :-1]), dim=1)
    with torch.no_grad():
        out = native(**inputs, decoder_input_ids=written, output_attentions=True)
    given = {**inputs, "decoder_input_ids": written, "decoder_attention_mask": labels["attention_mask"]}
    ours = from_native(native)
    reports = attention_reports(ours, given, sink_tokens=SINK, keep_maps=True)
    assert list(reports) == ["encoder", "decoder", "cross"] and ours.config._attn_implementation != "eager"
    read, wrote = places_of(inputs["attention_mask"]), places_of(labels["attention_mask"])
    kinds = {
        "encoder": (out.encoder_attentions, read, read, lambda query, key: True),
        "decoder": (out.decoder_attentions, wrote, wrote, lambda query, key: key <= query),
        "cross": (out.cross_attentions, wrote, read, lambda query, key: True),
    }
    if case[0] == "longt5":
        # natively the weights of its encoder are those of blocks
        del kinds["encoder"]
    if case[0] == "t5gemma":
        window = ours.config.decoder.sliding_window
        kinds = {"cross": kinds["cross"]} if window else kinds
    for kind, (attentions, queries, keys, visible) in kinds.items():
        assert reports[kind].kind == kind and ("distance" in reports[kind].heads[0]) == (kind != "cross")
        compare(reports[kind], by_hand(attentions, queries, keys, visible), attentions, queries, keys)
        longest = max(range(3), key=lambda row: len(queries[row]))
        last = attentions[0][longest, 0][queries[longest]][:, keys[longest]][-1]
        torch.testing.assert_close(reports[kind].maps[0, 0, -1, : len(last)], last, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [IMAGES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in IMAGES[1:])])
def test_mass_on_images_is_that_of_the_native_class(name):
    native = native_of(name)
    native.set_attn_implementation("eager")
    ours = from_native(native)
    own, theirs = inputs_of(name, ours)
    with torch.no_grad():
        attentions = native(**theirs, output_attentions=True).attentions
    report = attention_reports(ours, own, sink_tokens=SINK)["self"]
    real, is_image = own["attention_mask"].bool(), own["input_ids"] == ours.config.image_token_id
    asks, keys, images = places_of(real & ~is_image), places_of(real), places_of(is_image)
    for row in report.heads:
        layer = attentions[row["layer"]][:, row["head"]].double()
        masses, evens, entropies = [], [], []
        for index, places in enumerate(asks):
            for query in places:
                weights = layer[index, query]
                seen = weights[keys[index]] > 0
                if seen.sum() > 1:
                    entropies.append(float(torch.special.entr(weights[keys[index]]).sum()))
                if query > images[index][0]:
                    masses.append(float(weights[images[index]].sum()))
                    evens.append(float((weights[images[index]] > 0).sum() / seen.sum()))
        assert row["image_mass"] == pytest.approx(sum(masses) / len(masses), abs=2e-5)
        assert row["even_image_mass"] == pytest.approx(sum(evens) / len(evens), abs=1e-6)
        assert row["entropy"] == pytest.approx(sum(entropies) / len(entropies), abs=2e-5)
    assert report.tokens == sum(map(len, asks))


@pytest.mark.parametrize("toggles", [("relative", "mla_alternating"), ("sinks", "sinks_softcap_sliding"), ("mla", "qk_head")])
def test_toggles_of_both_stacks(toggles):
    model = variants.build(variants.tiny_pair(*toggles))
    ids = torch.randint(4, 50, (2, 7), generator=torch.Generator().manual_seed(3))
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    reports = attention_reports(model, inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, output_attentions=True, use_cache=False)
    for kind, attentions in (
        ("encoder", out.encoder_attentions),
        ("decoder", out.decoder_attentions),
        ("cross", out.cross_attentions),
    ):
        first = int(kind == "decoder")  # the first causal query has no choice
        for row in reports[kind].heads:
            weights = attentions[row["layer"]][:, row["head"], first:].double()
            kept = weights.sum(-1, keepdim=True)
            entropy = torch.special.entr(weights / kept).sum(-1).mean()
            assert row["entropy"] == pytest.approx(float(entropy), abs=1e-5)
            assert row["learned_sink_mass"] == pytest.approx(float(1 - kept.mean()), abs=1e-5)
            assert row["sink_mass"] == pytest.approx(float(weights[..., 0].mean()), abs=1e-5)
            assert row["entropy_share"] <= 1 + 1e-9


def test_gated_cross_attention_is_a_kind_of_its_own():
    model = vlm(**BRIDGES["gated_all"])
    inputs = batch(model, (1, IMAGE, 2, 3), (4, 5, IMAGE, 6))
    seen = []
    block = model.model.cross_layers["1"].cross_attn
    model.set_attn_implementation("eager")
    block.register_forward_hook(lambda module, args, output: seen.append(output[1].double()))
    reports = attention_reports(model, inputs)
    assert list(reports) == ["self", "images"] and reports["images"].layers == [1] and reports["images"].tokens == 3
    weights = torch.stack([seen[0][0, :, 2], seen[0][0, :, 3], seen[0][1, :, 3]], dim=1)
    for row in reports["images"].heads:
        own = weights[row["head"]]
        assert row["entropy"] == pytest.approx(float(torch.special.entr(own).sum(-1).mean()), abs=1e-6)
        assert row["sink_mass"] == pytest.approx(float(own[:, 0].mean()), abs=1e-6)
    assert int((inputs["input_ids"] == IMAGE_ID).sum()) == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_change_nothing(side):
    model = variants.build(variants.tiny("sinks_softcap_sliding"))
    ids = torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(3))
    alone = attention_report(model, ids[:1, :6])
    columns = slice(0, 6) if side == "right" else slice(3, 9)
    padded = torch.zeros(1, 9, dtype=torch.long)
    padded[:, columns] = ids[:1, :6]
    mask = torch.zeros_like(padded)
    mask[:, columns] = 1
    both = attention_report(model, padded, attention_mask=mask)
    assert both.tokens == alone.tokens == 6
    for one, other in zip(alone.heads, both.heads, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    for layer, ranges in alone.by_position.items():
        for one, other in zip(ranges, both.by_position[layer], strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_labels_and_decoder_inputs_say_the_same():
    model = variants.build(variants.tiny_pair())
    ids = torch.randint(4, 50, (2, 7), generator=torch.Generator().manual_seed(3))
    labels = ids.flip(1).clone()
    labels[0, 5:] = -100
    found = attention_reports(model, {"input_ids": ids, "labels": labels})
    inputs = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    inputs["decoder_attention_mask"] = (labels != -100).long()
    again = attention_reports(model, {"input_ids": ids, **inputs})
    assert {kind: report.as_dict() for kind, report in found.items()} == {
        kind: report.as_dict() for kind, report in again.items()
    }
    assert found["cross"].tokens == found["decoder"].tokens == 12 and found["encoder"].tokens == 14


def test_inputs_that_say_nothing_are_refused():
    pair, images, stack = variants.build(variants.tiny_pair()), vlm(), variants.build(variants.tiny("gqa"))
    ids = torch.ones(1, 5, dtype=torch.long)
    for model, inputs, said in (
        (pair, {"input_ids": ids}, r"no decoder_input_ids \(or labels"),
        (pair, {"decoder_input_ids": ids}, "no input_ids"),
        (pair, {"input_ids": ids, "decoder_input_ids": ids[:, :1]}, "decoder_input_ids of shape .* at least 2 tokens"),
        (stack, {"input_ids": ids, "decoder_input_ids": ids}, "decoder_input_ids.*choose from"),
        (stack, {"input_ids": ids, "attention_mask": ids[:, :3]}, r"attention_mask has the shape \(1, 3\)"),
        (images, batch(images, (1, 2, IMAGE)), "no text token stands behind an image"),
    ):
        with pytest.raises(ValueError, match=said):
            attention_reports(model, inputs)
