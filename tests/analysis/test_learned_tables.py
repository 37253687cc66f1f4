"""A row that a model with a learned table of positions refuses has no cost: what counts from a config refuses it too."""

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsSeq2SeqConfig
from hf_variants.analysis import count, flops_per_token, kv_cache_bytes, plan_memory
from tests.variants import BASE

ENDS = {**BASE, "position_embedding_type": "learned", "max_position_embeddings": 16}
COUNTED = {
    "count": lambda config, length: count(config, [length]),
    "flops_per_token": flops_per_token,
    "decode": lambda config, length: flops_per_token(config, length, "decode"),
    "kv_cache_bytes": kv_cache_bytes,
    "plan_memory": lambda config, length: plan_memory(config, length=length),
}


@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("offset", [0, 2])
def test_where_the_model_ends_the_count_ends(counted, offset):
    config = VariantsConfig(**ENDS, position_embedding_offset=offset)
    model = VariantsForCausalLM(config)
    model(torch.ones(1, 16, dtype=torch.long))
    counted(config, 16)
    with pytest.raises(ValueError, match="beyond the learned table of max_position_embeddings=16"):
        model(torch.ones(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="length=17 lies beyond the learned table of max_position_embeddings=16"):
        counted(config, 17)


@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("kind", ["rope", "alibi", "sinusoidal", "none"])
def test_other_positions_have_no_end(counted, kind):
    counted(VariantsConfig(**{**ENDS, "position_embedding_type": kind}), 17)


def test_each_stack_has_a_table_of_its_own():
    longer = {**ENDS, "max_position_embeddings": 32}
    config = VariantsSeq2SeqConfig(encoder=ENDS, decoder=longer, decoder_start_token_id=1)
    count(config, [32], encoder_length=16)
    with pytest.raises(ValueError, match="encoder_length=17 lies beyond"):
        count(config, [32], encoder_length=17)
    with pytest.raises(ValueError, match="length=33 lies beyond"):
        count(config, [33], encoder_length=16)
