"""B03: documents packed into a row never see each other, whatever mask comes with them."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.modeling.helpers import BOTH_WAYS, MIXERS, TOLERANCE, documents_alone, logits_of, model_of, pack, scaled_far

# lengths on both sides of a window of 4, a chunk of 5 and an original length of 16, and a document of one token
LENGTHS = [6, 1, 19, 9]


def check_packing(model):
    ids, positions, _ = pack(LENGTHS)
    alone = documents_alone(model, ids, LENGTHS)
    for mask in (None, torch.ones_like(ids)):
        assert scaled_far(logits_of(model, ids, attention_mask=mask, position_ids=positions), alone) <= TOLERANCE
    long_ids, long_positions, long_mask = pack(LENGTHS, pads=5)
    packed = logits_of(model, long_ids, attention_mask=long_mask, position_ids=long_positions)
    assert scaled_far(packed[:, : ids.shape[1]], alone) <= TOLERANCE and packed.isfinite().all()


@pytest.mark.parametrize("name, is_causal", BOTH_WAYS)
def test_b03_packed_rows_equal_documents_alone(name, is_causal):
    check_packing(model_of(name, is_causal=is_causal))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    "name", ["gqa", "mla_alternating", "sinks_softcap_sliding", "alibi_terms", "chunked", "nested_dynamic"]
)
def test_b03_packed_rows_in_eager(name, is_causal):
    check_packing(model_of(name, "eager", is_causal))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", ["gqa", "mla_softcap", "alternating", "alibi", "chunked"])
def test_b03_packed_rows_in_flex(name, is_causal):
    ids, positions, mask = pack(LENGTHS, pads=5)
    out = logits_of(model_of(name, "flex_attention", is_causal), ids, attention_mask=mask, position_ids=positions)
    real = slice(0, sum(LENGTHS))
    assert scaled_far(out[:, real], documents_alone(model_of(name, "eager", is_causal), ids, LENGTHS)) <= TOLERANCE


@pytest.mark.parametrize("name, is_causal", [(name, is_causal) for name in MIXERS for is_causal in (True, False)])
def test_b03_pads_between_and_before_packed_documents(name, is_causal):
    """Two rows cut differently, pads at the front, between documents and at the end, with any position on the pads."""
    model = model_of(name, is_causal=is_causal)
    first, first_positions, _ = pack([6, 19], seed=2)
    second, second_positions, _ = pack([11, 7, 7], seed=3)
    width = 32
    ids, positions, mask = (torch.zeros(2, width, dtype=torch.long) for _ in range(3))
    columns = [[*range(3, 9), *range(11, 30)], [*range(0, 18), *range(22, 29)]]
    for row, (tokens, places) in enumerate([(first, first_positions), (second, second_positions)]):
        ids[row, columns[row]], positions[row, columns[row]], mask[row, columns[row]] = tokens[0], places[0], 1
    for value in (0, 3, 50):
        filled = torch.where(mask.bool(), positions, value)
        packed = logits_of(model, ids, attention_mask=mask, position_ids=filled)
        assert packed.isfinite().all()
        assert scaled_far(packed[:1, columns[0]], documents_alone(model, first, [6, 19])) <= TOLERANCE
        assert scaled_far(packed[1:, columns[1]], documents_alone(model, second, [11, 7, 7])) <= TOLERANCE


@pytest.mark.parametrize("name", MIXERS)
def test_b03_decoding_after_a_packed_prompt_continues_its_last_document(name):
    model = model_of(name)
    more = 4
    ids, positions, _ = pack([6, 9 + more])
    with torch.no_grad():
        out = model(ids[:, :15], position_ids=positions[:, :15], use_cache=True)
        steps = [out.logits]
        for column in range(15, 15 + more):
            out = model(
                ids[:, [column]], position_ids=positions[:, [column]], past_key_values=out.past_key_values, use_cache=True
            )
            steps.append(out.logits)
    joined = torch.cat(steps, dim=1)
    assert scaled_far(joined, documents_alone(model, ids, [6, 9 + more])) <= TOLERANCE


CUT = ["gqa", "mla_qk_head", "alternating", "chunked", "alibi", "learned", "sinks_softcap_sliding"]
# a static cache of chunked layers alone cannot hold the record, and says so
KEPT = [(name, "dynamic") for name in CUT] + [(name, "static") for name in CUT if name != "chunked"]


@pytest.mark.parametrize("cuts", [[3], [6], [7], [6, 7, 26], [3, 30], [5, 6, 7, 8, 9]], ids=str)
@pytest.mark.parametrize("name, cache", KEPT)
def test_b03_a_packed_prompt_may_be_cut_anywhere(name, cuts, cache):
    """Also where the first piece holds one document only, so that nothing of it said that the row is packed."""
    model = model_of(name)
    ids, positions, _ = pack(LENGTHS)
    make = {
        "dynamic": lambda: DynamicCache(config=model.config),
        "static": lambda: StaticCache(config=model.config, max_cache_len=40),
    }[cache]
    past, pieces = make(), []
    with torch.no_grad():
        for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
            place = positions[:, start:end]
            pieces.append(model(ids[:, start:end], position_ids=place, past_key_values=past, use_cache=True).logits)
    assert scaled_far(torch.cat(pieces, dim=1), documents_alone(model, ids, LENGTHS)) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla", "sliding", "alibi_terms"])
def test_b03_a_packed_prompt_with_left_pads_may_be_cut_anywhere(name):
    model = model_of(name)
    ids, positions, _ = pack([6, 9])
    ids, positions = (torch.nn.functional.pad(part, (4, 0)) for part in (ids, positions))
    mask = torch.ones_like(ids)
    mask[:, :4] = 0
    alone = documents_alone(model, ids[:, 4:], [6, 9])
    for cuts in ([3], [7], [10], [12], list(range(5, 19))):
        past, pieces = DynamicCache(config=model.config), []
        with torch.no_grad():
            for start, end in zip([0, *cuts], [*cuts, 19], strict=True):
                inputs = {"position_ids": positions[:, start:end], "attention_mask": mask[:, :end]}
                pieces.append(model(ids[:, start:end], past_key_values=past, use_cache=True, **inputs).logits)
        assert scaled_far(torch.cat(pieces, dim=1)[:, 4:], alone) <= TOLERANCE, cuts
