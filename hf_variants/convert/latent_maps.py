"""Config rules for latent attention. `head_dim` is forced natively to the rotary width; the latent norms use 1e-6
whatever `rms_norm_eps` says."""

from hf_variants.convert.config_map import Always, Both, Key, Same
from hf_variants.convert.shared_maps import MODERN_KEYS, all_biases, rope

_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _read_ranks(native):
    return {name: getattr(native, name) for name in _RANKS}


def _write_ranks(config):
    return {name: getattr(config, name) for name in _RANKS} if config.attention_type == "mla" else {}


LATENT_KEYS = [
    Both(lambda native: {"head_dim": native.qk_rope_head_dim}),
    Always(attention_type="mla", latent_norm_eps=1e-6),
    Both(_read_ranks, _write_ranks),
]

# DeepSeek-V3 but for its feed-forward
DEEPSEEK_V3_KEYS = [
    *MODERN_KEYS,
    Same("intermediate_size", "hidden_act"),
    Key("rope_interleaved", "rope_interleave"),
    *LATENT_KEYS,
    all_biases(),
    rope(),
]
