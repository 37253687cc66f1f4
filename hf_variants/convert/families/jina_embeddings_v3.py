"""Jina Embeddings v3: RoBERTa with RoPE in place of its table of positions.

Notable here: positions are counted over the row, not over the ids that are no pads.
"""

from hf_variants.convert.config_map import Always, Same
from hf_variants.convert.encoder_maps import BERT_KEYS, DROPPED_CLASSIFIER, OURS, POST_LN, roberta_heads
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import rope
from hf_variants.convert.weight_rules import rename

TABLES = {"word_embeddings": "embed_tokens", "token_type_embeddings": "embed_types", "LayerNorm": "embed_norm"}
_BLOCK = "roberta.layers.*."
_PARTS = {
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}

FAMILY = Family(
    model_type="jina_embeddings_v3",
    config=[
        *BERT_KEYS,
        DROPPED_CLASSIFIER,
        POST_LN,
        Same("use_cache", "max_position_embeddings"),
        Always(position_embedding_type="rope"),
        Always(pooler=True, lm_head_act="gelu", task_head="dropped_dense", classifier_act="tanh"),
        rope(),
    ],
    weights=[
        *(rename(f"roberta.embeddings.{native}.*", f"model.{ours}.*") for native, ours in TABLES.items()),
        rename(_BLOCK + "self_attn.**", OURS + "self_attn.**"),
        *(rename(f"{_BLOCK}{native}.*", f"{OURS}{ours}.*") for native, ours in _PARTS.items()),
        rename("roberta.pooler.dense.*", "model.pooler.dense.*"),
    ],
    prefix="roberta.",
    heads=roberta_heads(),
    other_heads=("roberta.pooler.",),
)
