"""T5Gemma: two stacks of Gemma 2, each of its own size, with soft-capped cross-attention that is never windowed."""

from hf_variants.convert.config_map import Always, Both, Same, TrainingOnly
from hf_variants.convert.pair_family import PairFamily
from hf_variants.convert.seq2seq_maps import STACKS
from hf_variants.convert.shared_maps import gemma_keys, rope
from hf_variants.convert.weight_rules import keep, rename


def _stack(*more):
    return [
        *(rule for rule in gemma_keys() if not (isinstance(rule, Same) and "tie_word_embeddings" in rule.names)),
        Same("initializer_range", "use_cache", "attn_logit_softcapping"),
        rope(),
        # natively given embeddings are scaled too
        Always(embedding_multiplier_scope="inputs_embeds"),
        *more,
    ]


# the encoder sees `sliding_window` tokens on either side
_BOTH_SIDES = Both(
    lambda native: {"sliding_window": 2 * native.sliding_window if "sliding_attention" in native.layer_types else None},
    lambda config: {} if config.sliding_window is None else {"sliding_window": config.sliding_window // 2},
)


_DROPOUT = TrainingOnly("dropout_rate", "drops embeddings, feed-forwards, branches behind their last norms, and last states")


def _read_whole(native):
    return {
        "decoder_start_token_id": native.decoder.bos_token_id,
        "tie_word_embeddings": native.tie_word_embeddings,
        **{name: getattr(native, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    }


def _write_whole(config):
    return {
        "tie_word_embeddings": config.tie_word_embeddings,
        "vocab_size": config.decoder.vocab_size,
        "attention_dropout": config.decoder.attention_dropout,
        **{name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    }


_NORMS = {
    "pre_self_attn_layernorm": "input_layernorm",
    "post_self_attn_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "pre_cross_attn_layernorm": "cross_attn_layernorm",
    "post_cross_attn_layernorm": "post_cross_attn_layernorm",
}

FAMILY = PairFamily(
    model_type="t5gemma",
    nested=True,
    encoder=_stack(_BOTH_SIDES, Always(final_logit_softcapping=None)),
    decoder=_stack(),
    config=[Both(_read_whole, _write_whole), _DROPOUT],
    weights=[
        rename("lm_head.out_proj.weight", "lm_head.weight"),
        *(
            rule
            for stack in STACKS
            for rule in (
                *keep(f"model.{stack}.embed_tokens.weight", f"model.{stack}.norm.weight"),
                *keep(f"model.{stack}.layers.*.self_attn.**", f"model.{stack}.layers.*.mlp.**"),
                *(
                    rename(f"model.{stack}.layers.*.{theirs}.weight", f"model.{stack}.layers.*.{ours}.weight")
                    for theirs, ours in _NORMS.items()
                ),
            )
        ),
        *keep("model.decoder.layers.*.cross_attn.**"),
    ],
)
