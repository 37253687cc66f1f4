"""What an image encoder may not be, each rule with its reason; and the choices of its own fields.

Notable here: the stack of an image encoder is a whole `VariantsConfig`, and the fields of it that belong to text or to its
heads would silently do nothing, so they are refused by name.
"""

from dataclasses import fields

from .rule import Rule
from .vocabulary import LEARNED

# field -> choice -> meaning with its source
IMAGE_CHOICES = {
    "patch_positions": {
        "encoder": "Those of the stack, over class token and patches row by row: encoder.position_embedding_type.",
        "sinusoidal_2d": "Sines and cosines, half the width for the row and half for the column (MAE 2021, arXiv:2111.06377).",
        "learned_2d": "A trained vector per row plus one per column (NaViT 2023, arXiv:2307.06304 §2.1, factorized).",
    },
}

# Fields of the stack that tokens or heads alone read.
TEXT_FIELDS = (
    *("tie_word_embeddings", "lm_head_bias", "final_logit_softcapping", "logits_scaling", "freeze_pad_embedding"),
    *("type_vocab_size", "pooler", "lm_head_act", "lm_head_transform_bias", "task_head", "classifier_act"),
    *("classifier_pooling", "classifier_dropout", "token_classifier_dropout", "qa_dropout"),
    *("position_source", "embedding_multiplier_scope", "pad_token_id", "bos_token_id", "eos_token_id"),
)


def _text_field(name, default):
    return Rule(
        f"{name} belongs to text",
        lambda c: getattr(c.encoder, name) != default,
        f"encoder.{name}={{c.encoder.{name}!r}} has no effect in an image encoder, which reads no tokens and has no head; "
        f"leave it at {default!r}",
    )


def _own_positions(c):
    return c.patch_positions != "encoder"


def _sides(value):
    return value if isinstance(value, list) else [value]


def image_rules(text_config_class):
    """The rules, given the class whose defaults the fields of text have."""
    defaults = {field.name: field.default for field in fields(text_config_class)}
    defaults["classifier_pooling"] = "first"  # what a bidirectional stack resolves None to
    return [
        Rule(
            "an image encoder sees in both directions",
            lambda c: c.encoder.is_causal,
            "encoder.is_causal=True would hide every patch from those above and left of it; set encoder.is_causal=False",
        ),
        Rule(
            "images are not read beside another stack",
            lambda c: c.encoder.add_cross_attention,
            "encoder.add_cross_attention=True asks for the states of another stack, which an image encoder is not given; "
            "leave it False",
        ),
        *(_text_field(name, defaults[name]) for name in TEXT_FIELDS),
        Rule(
            "an image encoder has no vocabulary",
            lambda c: c.encoder.vocab_size != 1,
            "encoder.vocab_size={c.encoder.vocab_size} has no effect in an image encoder, which reads no tokens; set "
            "encoder.vocab_size=1, or give encoder as a dict without it",
        ),
        Rule(
            "a stack of images has no loss of its own",
            lambda c: bool(c.encoder.router_aux_loss_coef or c.encoder.router_z_loss_coef),
            "encoder.router_aux_loss_coef={c.encoder.router_aux_loss_coef} and encoder.router_z_loss_coef="
            "{c.encoder.router_z_loss_coef} have no effect: what is built on an image encoder adds no router terms of it to "
            "its loss; choose encoder.router_balance from 'none' and 'bias', and 0 for the coefficients",
        ),
        *(
            Rule(
                f"{name} is one side or two",
                lambda c, name=name: (
                    len(_sides(getattr(c, name))) not in (1, 2)
                    or any(not isinstance(side, int) or side <= 0 for side in _sides(getattr(c, name)))
                ),
                f"{name}={{c.{name}!r}} must be a positive number of pixels, or [height, width] of such numbers",
            )
            for name in ("image_size", "patch_size")
        ),
        Rule(
            "there are channels",
            lambda c: c.num_channels <= 0,
            "num_channels={c.num_channels} must be greater than zero: 1 for grey and 3 for RGB images",
        ),
        Rule(
            "patches tile the image",
            lambda c: any(side % patch for side, patch in zip(c.image_sides, c.patch_sides, strict=True)),
            "image_size={c.image_size} is not a multiple of patch_size={c.patch_size}, so pixels at the edge would be "
            "ignored; choose sides that are multiples",
        ),
        Rule(
            "one table of positions",
            lambda c: _own_positions(c) and c.encoder.position_embedding_type not in ("none", "rope", "alibi", "relative"),
            "patch_positions={c.patch_positions!r} and encoder.position_embedding_type={c.encoder.position_embedding_type!r} "
            "would both add positions to the patches; set encoder.position_embedding_type='none' or patch_positions='encoder'",
        ),
        Rule(
            "sines of two directions in four parts",
            lambda c: c.patch_positions == "sinusoidal_2d" and c.encoder.embedding_size % 4 != 0,
            "patch_positions='sinusoidal_2d' gives a quarter of the width to each of sine and cosine of row and column, but "
            "encoder.embedding_size={c.encoder.embedding_size} is no multiple of 4; choose one that is",
        ),
        Rule(
            "a learned table has one row per token",
            lambda c: c.encoder.position_embedding_type in LEARNED and c.encoder.max_position_embeddings != c.num_tokens,
            "encoder.max_position_embeddings={c.encoder.max_position_embeddings} is not the number of tokens of an image, "
            "{c.num_tokens} (image_size={c.image_size}, patch_size={c.patch_size}, class_token={c.class_token}); set it to "
            "{c.num_tokens}, or give encoder as a dict without it",
        ),
    ]
