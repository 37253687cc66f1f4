"""ERNIE: BERT, as long as it uses no task ids."""

from hf_variants.convert.config_map import Refuse
from hf_variants.convert.encoder_maps import BERT_HEAD_KEYS, DROPPED_CLASSIFIER, POST_LN, bert_heads, bert_weights
from hf_variants.convert.registry import Family

FAMILY = Family(
    model_type="ernie",
    config=[
        *BERT_HEAD_KEYS,
        DROPPED_CLASSIFIER,
        POST_LN,
        Refuse("use_task_id", lambda native: native.use_task_id, "no toggle means embeddings of tasks; set it to False"),
    ],
    weights=bert_weights("ernie."),
    prefix="ernie.",
    heads=bert_heads(),
    other_heads=("ernie.pooler.", "cls.seq_relationship."),
)
