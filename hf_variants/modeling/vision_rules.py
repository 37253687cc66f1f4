"""What a vision-language config may not be, each rule with its reason.

Notable here: as `config_rules.py`; a key that would do nothing with the chosen bridge or compression is refused by name.
"""

from .rule import DERIVED, Rule, only_with, only_with_any, positive
from .token_compression import SQUARES, compressed_grid


def _needs_compression(name, choices, unset):
    return Rule(
        f"{name} needs its compression",
        lambda c: getattr(c, name) != unset and c.token_compression not in choices,
        f"{name}={{c.{name}}} has no effect with token_compression={{c.token_compression!r}}; it belongs to {list(choices)}, "
        f"leave it at {unset}",
    )


def _squares_do_not_fit(c):
    if c.token_compression not in SQUARES or not c.image_grid:
        return False
    try:
        compressed_grid(c.token_compression, c.compression_factor, *c.image_grid)
    except ValueError:
        return True
    return False


VISION_RULES = [
    *(
        positive(name, DERIVED)
        for name in ("num_resampler_layers", "num_resampler_heads", "num_resampler_tokens", "compression_factor")
    ),
    positive("projector_intermediate_size", DERIVED),
    positive("projector_norm_eps", DERIVED),
    only_with_any("projector_norm_eps", "projector_norm", ("layernorm", "rmsnorm")),
    Rule(
        "a single layer has no inner width",
        lambda c: c.projector == "affine" and c.projector_intermediate_size is not None,
        "projector_intermediate_size={c.projector_intermediate_size} has no effect with projector='affine'; leave it at None, "
        "or set projector to 'mlp' or 'gated'",
    ),
    _needs_compression("compression_factor", SQUARES, None),
    _needs_compression("num_resampler_tokens", ("resampler",), None),
    _needs_compression("num_resampler_layers", ("resampler",), None),
    _needs_compression("num_resampler_heads", ("resampler",), None),
    only_with("image_delimiters", "bridge", "projection", False),
    only_with("image_attention", "bridge", "projection", "causal"),
    only_with("cross_attention_layers", "bridge", "gated_cross_attention", None),
    only_with("cross_attention_scope", "bridge", "gated_cross_attention", "last"),
    only_with("cross_attention_mlp", "bridge", "gated_cross_attention", False),
    Rule(
        "heads tile the width of the resampler",
        lambda c: c.token_compression == "resampler" and c.vision_width % c.num_resampler_heads != 0,
        "num_resampler_heads={c.num_resampler_heads} does not divide the width of the tower's features, {c.vision_width}; "
        "choose a divisor",
    ),
    Rule(
        "an activation acts",
        lambda c: c.projector_hidden_act != "gelu" and c.projector == "affine" and c.token_compression != "resampler",
        "projector_hidden_act={c.projector_hidden_act!r} has no effect with projector='affine' and no resampler; leave it at "
        "'gelu', or set projector to 'mlp' or 'gated'",
    ),
    Rule(
        "squares are of patches",
        lambda c: c.token_compression in SQUARES and c.vision_feature_select_strategy == "full" and c.tower_has_class_token,
        "token_compression={c.token_compression!r} joins squares of patches, of which the class token is none; set "
        "vision_feature_select_strategy='default'",
    ),
    Rule(
        "full means a class token",
        lambda c: c.vision_feature_select_strategy == "full" and not c.tower_has_class_token,
        "vision_feature_select_strategy='full' has no effect with a tower without a class token "
        "(vision_config.model_type={c.vision_config.model_type!r}); leave it at 'default'",
    ),
    Rule(
        "squares tile the image",
        _squares_do_not_fit,
        "compression_factor={c.compression_factor} does not divide the {c.image_grid[0]} x {c.image_grid[1]} patches of an "
        "image of vision_config.image_size={c.vision_config.image_size}; choose a common divisor",
    ),
    Rule(
        "squares join something",
        lambda c: c.token_compression in SQUARES and c.compression_factor == 1,
        "compression_factor=1 joins nothing; use token_compression='none', or a factor of at least 2",
    ),
    Rule(
        "text is generated",
        lambda c: not c.text_config.is_causal,
        "text_config.is_causal=False makes an encoder, but text is generated after images; set it to True",
    ),
    Rule(
        "no other stack",
        lambda c: getattr(c.text_config, "add_cross_attention", False),
        "text_config.add_cross_attention=True is for encoder-decoders; images are read with bridge='gated_cross_attention'",
    ),
    Rule(
        "a recomputed cache knows no images",
        lambda c: (c.image_attention != "causal" or c.bridge != "projection") and c.text_follows_original_length,
        "rope_type 'longrope' computes the cache again without knowing which tokens were images or saw them, as "
        "bridge={c.bridge!r} with image_attention={c.image_attention!r} asks; use bridge='projection' with "
        "image_attention='causal', or another rope_type",
    ),
    Rule(
        "an image token is a token",
        lambda c: c.image_token_id < 0,
        "image_token_id={c.image_token_id} must not be negative",
    ),
    Rule(
        "an image token of the text",
        lambda c: c.bridge == "gated_cross_attention" and c.image_token_id >= c.text_config.vocab_size,
        "image_token_id={c.image_token_id} is not in the vocabulary of {c.text_config.vocab_size}, but under "
        "bridge='gated_cross_attention' it is read as text; choose an id below it",
    ),
    Rule(
        "image tokens are not pads",
        lambda c: c.image_token_id in (c.text_config.pad_token_id, c.text_config.bos_token_id),
        "image_token_id={c.image_token_id} is also pad_token_id={c.text_config.pad_token_id} or "
        "bos_token_id={c.text_config.bos_token_id} of text_config; give images an id of their own",
    ),
    Rule(
        "cross-attention stands before layers",
        lambda c: (
            c.bridge == "gated_cross_attention"
            and (
                not c.cross_attention_layers
                or sorted(set(c.cross_attention_layers)) != list(c.cross_attention_layers)
                or not 0 <= c.cross_attention_layers[0] <= c.cross_attention_layers[-1] < c.text_config.num_hidden_layers
            )
        ),
        "cross_attention_layers={c.cross_attention_layers} must be growing numbers of text layers, from 0 to "
        "{c.text_config.num_hidden_layers} - 1, with at least one",
    ),
]
