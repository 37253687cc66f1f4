"""BERT for generation: BERT without token types and pooler, as a causal decoder under a bare head with a bias.

Notable here: with `is_decoder=False`, the native default, its tokens see the whole row; that is refused.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.encoder_maps import BERT_BIASES, POST_LN, bert_embeddings, bert_layers, dropouts
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, FROZEN_PAD
from hf_variants.convert.tensor_ops import DropDead
from hf_variants.convert.weight_rules import only_if, rearrange, rename

FAMILY = Family(
    model_type="bert-generation",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Same("intermediate_size", "hidden_act", "max_position_embeddings"),
        FROZEN_PAD,
        Key("norm_eps", "layer_norm_eps"),
        *dropouts(),
        POST_LN,
        Always(norm_type="layernorm", mlp_type="plain", position_embedding_type="learned", **BERT_BIASES),
        Both(writer=lambda config: {"is_decoder": True}),
        Refuse("is_decoder", lambda native: not native.is_decoder, "its tokens see what follows them; set it to True"),
        Refuse("add_cross_attention", lambda native: native.add_cross_attention, "a decoder alone has nothing to attend to"),
    ],
    weights=[
        *bert_embeddings("bert."),
        *bert_layers("bert.encoder.layer.*."),
        *only_if(lambda config: config.tie_word_embeddings, rename("lm_head.bias", "lm_head.bias")),
        *only_if(
            lambda config: not config.tie_word_embeddings,
            rename("lm_head.decoder.weight", "lm_head.weight"),
            rearrange(("lm_head.decoder.bias", "lm_head.bias"), "lm_head.bias", DropDead()),
        ),
    ],
    needs={"is_decoder": True},
    prefix="bert.",
)
