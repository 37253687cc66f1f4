"""MPNet: RoBERTa without token types, and a relative bias of T5's kind beside its learned positions.

Notable here: natively the buckets are always 32 and the pad always 1, whatever the config says; other values are refused.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.encoder_maps import (
    BERT_BIASES,
    ENCODER_KEYS,
    OURS,
    POST_LN,
    dropouts,
    positions_of_ids,
    roberta_heads,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

_BLOCK = "mpnet.encoder.layer.*."
_PARTS = {
    **{f"attention.attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"},
    "attention.LayerNorm": "post_attention_layernorm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "post_feedforward_layernorm",
}
_TABLES = {"word_embeddings": "embed_tokens", "position_embeddings": "embed_positions", "LayerNorm": "embed_norm"}

FAMILY = Family(
    model_type="mpnet",
    config=[
        *ENCODER_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("norm_eps", "layer_norm_eps"),
        *dropouts(),
        Always(norm_type="layernorm", mlp_type="plain", position_embedding_type="learned_relative", **BERT_BIASES),
        Always(pooler=True, lm_head_act="gelu", task_head="dropped_dense", classifier_act="tanh"),
        positions_of_ids(),
        Both(lambda native: {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}),
        Refuse("relative_attention_num_buckets", lambda native: native.relative_attention_num_buckets != 32, "it uses 32"),
        Refuse("pad_token_id", lambda native: native.pad_token_id != 1, "it counts positions by the id 1"),
        POST_LN,
    ],
    weights=[
        *(rename(f"mpnet.embeddings.{native}.*", f"model.{ours}.*") for native, ours in _TABLES.items()),
        *(rename(f"{_BLOCK}{native}.*", f"{OURS}{ours}.*") for native, ours in _PARTS.items()),
        rename("mpnet.encoder.relative_attention_bias.weight", "model.embed_positions.relative.weight"),
        rename("mpnet.pooler.dense.*", "model.pooler.dense.*"),
    ],
    prefix="mpnet.",
    heads=roberta_heads(),
    other_heads=("mpnet.pooler.",),
)
