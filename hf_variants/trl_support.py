"""The family's balance losses under TRL's trainers, which compute one of their own from the router logits.

Notable here: TRL (tried with 1.16) takes Mixtral's loss over all layers at once and knows no z-loss, so that a model would
train on something else than under a plain Trainer; its term is replaced by this family's, and what it has no place for is
refused when the trainer is made.
"""

import sys
from functools import wraps

from .when_imported import when_imported

_TRAINERS = tuple(f"trl.trainer.{name}_trainer" for name in ("sft", "dpo", "kto", "grpo", "rloo"))


def carry_router_terms(model):
    """Have a model that TRL has patched return its own balance loss; others than the family's are left as they are.

    TRL multiplies `aux_loss` by its own `router_aux_loss_coef`, so the z-loss enters it divided by that of the config.

    Raises:
        ValueError: for a z-loss without a balance loss, which TRL would drop.
    """
    coefs = getattr(model, "router_coefs", None)
    if not coefs or getattr(model.config, "model_type", None) != "variants":
        return
    if "aux_loss" not in coefs:
        raise ValueError(
            f"router_z_loss_coef={coefs['z_loss']} with router_balance={model.config.router_balance!r}: TRL's trainers add "
            "router terms only beside a balance loss and would drop it; load the model with router_z_loss_coef=0, or with "
            "router_balance='aux_loss'"
        )
    patched = model.forward

    @wraps(patched)
    def forward(*args, fused_lm_head=False, **kwargs):
        if not fused_lm_head:
            return patched(*args, **kwargs)
        seen = []
        handle = model.base_model.register_forward_hook(lambda module, inputs, output: seen.append(output.router_logits))
        try:
            output = patched(*args, fused_lm_head=True, **kwargs)
        finally:
            handle.remove()
        if output.aux_loss is not None:
            _replace_term(model, output, seen[0], kwargs.get("attention_mask"))
        return output

    model.forward = forward


def _replace_term(model, output, router_logits, attention_mask):
    """Put the family's terms in the place of TRL's, in its output and in the loss it already holds."""
    # TRL writes the coefficient of its arguments here
    coef = model.config.router_aux_loss_coef
    weights = {"aux_loss": 1.0, "z_loss": model.router_coefs.get("z_loss", 0.0) / coef}
    # none in evaluation, where the family's loss is pure cross-entropy
    terms = model.router_terms(router_logits, attention_mask)
    ours = sum((weights[name] * term for name, term in terms.items()), output.loss.new_zeros(()))
    output.loss = output.loss + coef * (ours - output.aux_loss)
    output.aux_loss = ours


def _wrap(module):
    """Wrap `add_fused_lm_head` where a TRL module holds it. Safe to repeat."""
    original = getattr(module, "add_fused_lm_head", None)
    if original is None or getattr(original, "carries_variants", False):
        return

    @wraps(original)
    def add_fused_lm_head(model, *args, **kwargs):
        original(model, *args, **kwargs)
        carry_router_terms(model)

    add_fused_lm_head.carries_variants = True
    module.add_fused_lm_head = add_fused_lm_head


def register_trl():
    """Teach TRL the family: now where it is imported, else when it is."""
    when_imported("trl.trainer.utils", _wrap)
    for name in _TRAINERS:
        if name in sys.modules:
            _wrap(sys.modules[name])
