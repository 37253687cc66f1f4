"""Mixtral: Mistral with experts in every layer, softmax over all of them, the chosen weights normalised."""

from hf_variants.convert.config_map import Always, HeadDim, Same, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, aux_loss, every_layer_sparse, one_window, rope

FAMILY = Family(
    model_type="mixtral",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Always(norm_topk_prob=True),
        HeadDim(),
        one_window(),
        rope(),
        every_layer_sparse(),
        aux_loss(),
        TrainingOnly("router_jitter_noise", "multiplies the input of router and experts by noise"),
    ],
    weights=LLAMA_WEIGHTS,
)
