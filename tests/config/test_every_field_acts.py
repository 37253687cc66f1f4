"""No field of the config is silently without effect: each has a value that changes what is computed, or is named as metadata.

Weights are drawn by the name of each parameter, so that two models differ by the field alone.
"""

import zlib
from dataclasses import fields

import pytest
import torch

from hf_variants import (
    VariantsConfig,
    VariantsForCausalLM,
    VariantsForMaskedLM,
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
    VariantsModel,
)
from tests.variants import BASE, BIDIRECTIONAL, ENCODERS, EXPERTS, MLA, RELATIVE, TEMPERATURE, draw_ids, far

TEMPERATURE_OF_SOME = {**TEMPERATURE, "no_rope_layers": [1, 0]}
GROUPS = {**EXPERTS, "num_experts": 8, "n_group": 4, "topk_group": 2}
SHARED = {**EXPERTS, "num_shared_experts": 1}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}
CLASSES = {**BIDIRECTIONAL, "task_head": "dense", "classifier_act": "gelu"}


@torch.no_grad()
def drawn(model):
    """Every parameter and balance bias drawn from a seed that its name gives."""
    for name, value in model.state_dict().items():
        value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.4)
    return model.eval()


def language_model(config):
    return drawn((VariantsForCausalLM if config.is_causal else VariantsForMaskedLM)(config))


def batch():
    """Two rows of ids, one of which has a pad within its visible part (what an id is may matter, not only the mask)."""
    ids = draw_ids(2, 13)
    ids[0, 4] = 0
    return ids


@torch.no_grad()
def logits(config):
    across = {"encoder_hidden_states": torch.ones(2, 3, config.cross_attention_hidden_size or 0)}
    return language_model(config)(batch(), **(across if config.add_cross_attention else {})).logits


@torch.no_grad()
def of_embeddings(config):
    model = language_model(config)
    return model(inputs_embeds=torch.linspace(-1, 1, 2 * 13 * 32).reshape(2, 13, 32)).logits


@torch.no_grad()
def in_half(config):
    return language_model(config).to(torch.bfloat16)(batch()).logits


@torch.no_grad()
def far_apart(config):
    return language_model(config)(draw_ids(1, 40)).logits


@torch.no_grad()
def at_far_positions(config):
    return language_model(config)(draw_ids(1, 13), position_ids=torch.arange(9000, 9013).unsqueeze(0)).logits


def bytes_in_half(config):
    return torch.tensor(
        sum(p.element_size() for p in VariantsForCausalLM._from_config(config, dtype=torch.bfloat16).parameters())
    )


def fresh(config):
    torch.manual_seed(0)
    return VariantsForCausalLM(config).lm_head.weight


def trained(config):
    """The loss and the gradient of the embeddings, under one draw of dropouts."""
    model = language_model(config).train()
    torch.manual_seed(0)
    loss = model(batch(), labels=batch()).loss
    loss.backward()
    return torch.cat((loss.detach().flatten(), model.get_input_embeddings().weight.grad.flatten()))


def bias_after_a_step(config):
    model = language_model(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(batch(), labels=batch()).loss.backward()
    optimizer.step()
    return torch.cat([value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")])


@torch.no_grad()
def pooled(config):
    pooled = getattr(drawn(VariantsModel(config))(batch()), "pooler_output", None)
    return torch.zeros(1) if pooled is None else pooled


def of_task(model_class):
    @torch.no_grad()
    def outputs(config):
        model = drawn(model_class(config))
        before = model(batch())
        torch.manual_seed(0)
        after = model.train()(batch())
        # in evaluation and in training
        return torch.cat([out[0].flatten() for out in (before, after)])

    return outputs


classes, token_classes = of_task(VariantsForSequenceClassification), of_task(VariantsForTokenClassification)
answers = of_task(VariantsForQuestionAnswering)


@torch.no_grad()
def kept(config):
    """Whether a call keeps a cache, and returns what routers said."""
    out = language_model(config)(batch())
    return torch.tensor([out.past_key_values is not None, out.router_logits is not None])


# field -> (what shows it, keys beside it, the value)
ACTS = {
    "vocab_size": (logits, {}, 67),
    "hidden_size": (logits, {}, 24),
    "intermediate_size": (logits, {}, 48),
    "num_hidden_layers": (logits, {}, 3),
    "num_attention_heads": (logits, {}, 2),
    "num_key_value_heads": (logits, {}, 4),
    "head_dim": (logits, {}, 8),
    "max_position_embeddings": (logits, DYNAMIC, 8),
    "tie_word_embeddings": (logits, {}, True),
    "initializer_range": (fresh, {}, 0.5),
    "hidden_act": (logits, {}, "gelu"),
    "attention_bias": (logits, {"attention_out_bias": False}, True),
    "attention_out_bias": (logits, {}, True),
    "mlp_bias": (logits, {"mlp_out_bias": False}, True),
    "mlp_out_bias": (logits, {}, True),
    "lm_head_bias": (logits, {}, True),
    "attention_type": (logits, {"num_key_value_heads": None}, "mqa"),
    "layer_types": (logits, {"sliding_window": 3}, ["sliding_attention", "full_attention"]),
    "sliding_window": (logits, {"sliding_window": 9}, 3),
    "attention_chunk_size": (logits, {"attention_chunk_size": 9}, 3),
    "attn_logit_softcapping": (logits, {}, 1.5),
    "attention_sinks": (logits, {}, True),
    "sinks_in_fp32": (bytes_in_half, {"attention_sinks": True}, True),
    "qk_norm": (logits, {}, "l2"),
    "qk_norm_after_rope": (logits, {"qk_norm": "head"}, True),
    "qk_norm_layers": (logits, {"qk_norm": "l2", "no_rope_layers": [1, 0]}, "rope"),
    "attn_output_gate": (logits, {}, "head"),
    "attn_temperature_tuning": (at_far_positions, {"max_position_embeddings": 9013}, True),
    "attn_temperature_layers": (logits, TEMPERATURE_OF_SOME, "nope"),
    "attn_temperature_offset": (logits, TEMPERATURE, 1),
    "attn_scale": (logits, TEMPERATURE, 0.2),
    "floor_scale": (logits, TEMPERATURE, 2),
    "clip_qkv": (logits, {}, 0.3),
    "query_pre_attn_scalar": (logits, {}, 20),
    "attention_multiplier": (logits, {}, 0.2),
    "scale_attn_by_inverse_layer_idx": (logits, {}, True),
    "q_lora_rank": (logits, MLA, 7),
    "kv_lora_rank": (logits, MLA, 12),
    "qk_nope_head_dim": (logits, MLA, 8),
    "qk_rope_head_dim": (logits, MLA, 4),
    "v_head_dim": (logits, MLA, 6),
    "is_causal": (logits, {}, False),
    "add_cross_attention": (logits, {}, True),
    "cross_attention_hidden_size": (logits, {"add_cross_attention": True}, 20),
    "position_embedding_type": (logits, {}, "alibi"),
    "rope_parameters": (logits, {}, {"rope_type": "default", "rope_theta": 50.0}),
    "rope_interleaved": (logits, {}, True),
    "partial_rotary_factor": (logits, {}, 0.5),
    "no_rope_layers": (logits, {}, [1, 0]),
    "position_embedding_offset": (logits, {"position_embedding_type": "sinusoidal"}, 2),
    "sinusoid_dtype": (far_apart, {"position_embedding_type": "sinusoidal"}, "float64"),
    "alibi_scaled_bf16": (logits, {"position_embedding_type": "alibi"}, True),
    "relative_attention_num_buckets": (logits, RELATIVE, 6),
    "relative_attention_max_distance": (logits, RELATIVE, 20),
    "relative_attention_per_layer": (logits, RELATIVE, True),
    "position_source": (logits, {**ENCODERS["positions_of_ids"], "position_source": "attention_mask"}, "input_ids"),
    "mlp_type": (logits, {}, "plain"),
    "swiglu_limit": (logits, {}, 0.5),
    "swiglu_alpha": (logits, {"swiglu_limit": 1.0}, 0.9),
    "num_experts": (logits, {}, 4),
    "num_experts_per_tok": (logits, EXPERTS, 1),
    "moe_intermediate_size": (logits, EXPERTS, 24),
    "num_shared_experts": (logits, EXPERTS, 1),
    "shared_expert_intermediate_size": (logits, SHARED, 30),
    "shared_expert_gate": (logits, SHARED, True),
    "mlp_layer_types": (logits, EXPERTS, ["dense", "sparse"]),
    "router_scoring": (logits, EXPERTS, "sigmoid"),
    "sparsemixer_jitter_eps": (logits, {**EXPERTS, "router_scoring": "sparsemixer"}, 0.4),
    "router_selection": (logits, {**EXPERTS, "router_scoring": "sigmoid", "router_balance": "bias"}, "logits"),
    "apply_router_weight_on_input": (logits, EXPERTS, True),
    "expert_output_norm": (logits, EXPERTS, True),
    "norm_topk_prob": (logits, EXPERTS, False),
    "routed_scaling_factor": (logits, EXPERTS, 2.5),
    "n_group": (logits, {**GROUPS, "topk_group": 1}, 2),
    "topk_group": (logits, GROUPS, 1),
    "router_bias": (logits, EXPERTS, True),
    "router_weight_in_fp32": (bytes_in_half, EXPERTS, True),
    "expert_bias": (logits, EXPERTS, True),
    "router_balance": (logits, EXPERTS, "bias"),
    "router_aux_loss_coef": (trained, {**EXPERTS, "router_balance": "aux_loss"}, 0.5),
    "router_z_loss_coef": (trained, EXPERTS, 0.5),
    "router_bias_update_rate": (bias_after_a_step, {**EXPERTS, "router_balance": "bias"}, 0.1),
    "norm_type": (logits, {}, "layernorm"),
    "norm_eps": (logits, {}, 0.1),
    "latent_norm_eps": (logits, MLA, 0.1),
    "norm_unit_offset": (logits, {}, True),
    "norm_weight_in_fp32": (in_half, {}, True),
    "norm_bias": (logits, {"norm_type": "layernorm"}, False),
    "norm_affine": (logits, {}, False),
    "norm_placement": (logits, {}, "post"),
    "final_norm": (logits, {}, False),
    "embedding_norm": (logits, {}, True),
    "embedding_multiplier": (logits, {"norm_placement": "post"}, 3.3),
    "embedding_multiplier_scope": (of_embeddings, {"embedding_multiplier": 3.3}, "input_ids"),
    "residual_multiplier": (logits, {}, 0.5),
    "final_logit_softcapping": (logits, {}, 2.0),
    "logits_scaling": (logits, {}, 3.0),
    "type_vocab_size": (logits, BIDIRECTIONAL, 2),
    "embedding_size": (logits, {}, 20),
    "embedding_projection": (logits, {"embedding_size": 20}, "tokens"),
    "first_attention_norm": (logits, {}, False),
    "pooler": (pooled, BIDIRECTIONAL, True),
    "lm_head_act": (logits, {}, "gelu"),
    "lm_head_transform_bias": (logits, {"lm_head_act": "gelu"}, False),
    "task_head": (classes, CLASSES, "dropped_dense"),
    "classifier_act": (classes, CLASSES, "tanh"),
    "classifier_pooling": (classes, BIDIRECTIONAL, "mean"),
    "attention_dropout": (trained, {}, 0.3),
    "hidden_dropout": (trained, {}, 0.3),
    "attention_output_dropout": (trained, {}, 0.3),
    "embedding_dropout": (trained, {}, 0.3),
    "activation_dropout": (trained, {}, 0.3),
    "final_dropout": (trained, {}, 0.3),
    "classifier_dropout": (classes, CLASSES, 0.3),
    "token_classifier_dropout": (token_classes, BIDIRECTIONAL, 0.3),
    "qa_dropout": (answers, BIDIRECTIONAL, 0.3),
    "pad_token_id": (classes, {**BIDIRECTIONAL, "classifier_pooling": "mean"}, 5),
    "freeze_pad_embedding": (trained, {}, True),
    "use_cache": (kept, {}, False),
    "output_router_logits": (kept, EXPERTS, True),
}
# what the stack does not compute with: `generate` stops at one, tokenizers begin with another, converters keep the third
METADATA = {"bos_token_id": 1, "eos_token_id": 2, "native": {"model_type": "llama"}}
# a dropout of its own in place of another's
COMPANIONS = {"task_head": {"hidden_dropout": 0.3}}


def test_every_field_is_here():
    own = [field.name for field in fields(VariantsConfig) if field.name in VariantsConfig.__annotations__]
    assert [name for name in own if name not in ACTS and name not in METADATA] == []
    assert set(ACTS) | set(METADATA) <= set(own)


@pytest.mark.parametrize("name", ACTS)
def test_a_field_acts(name):
    shows, beside, value = ACTS[name]
    beside = {**BASE, **beside, **COMPANIONS.get(name, {})}
    config = VariantsConfig(**{**beside, name: value})
    without, with_it = shows(VariantsConfig(**beside)), shows(config)
    assert without.shape != with_it.shape or far(without, with_it) > 0


@pytest.mark.parametrize("name", METADATA)
def test_metadata_changes_nothing_that_is_computed(name):
    plain, marked = VariantsConfig(**BASE), VariantsConfig(**BASE, **{name: METADATA[name]})
    assert far(logits(plain), logits(marked)) == 0
