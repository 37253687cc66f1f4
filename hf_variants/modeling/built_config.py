"""What a model was built from: toggles act when a model is made, so changing them afterwards must not pass for an effect.

Notable here: a checkpoint is written with the config its model was built from, whatever was set on `model.config` since, with
a warning that names the fields; so what is loaded again computes what was trained.
"""

import copy
from contextlib import ExitStack, contextmanager

from transformers.utils import logging

logger = logging.get_logger(__name__)

# Fields that act while a model runs, that the library itself moves along with the weights, or that describe the text alone.
LIVE_FIELDS = {
    *("vocab_size", "tie_word_embeddings", "use_cache", "output_router_logits", "native"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "final_logit_softcapping", "logits_scaling"),
}


def built_fields(config):
    """Copies of the fields of `config` that are fixed once a model is built from it; of its parts, their models keep them."""
    names = [name for name in config.own_fields() if name not in LIVE_FIELDS and name not in config.sub_configs]
    return {name: copy.deepcopy(getattr(config, name)) for name in names}


def changed_fields(built, config):
    """{field: (value the model was built with, value that stands in the config now)} where the two differ."""
    now = {name: getattr(config, name) for name in built}
    return {name: (value, now[name]) for name, value in built.items() if value != now[name]}


def without_effect(changed, what_to_do):
    """The text that names changed fields."""
    listed = ", ".join(f"{name}={now!r} (built with {value!r})" for name, (value, now) in changed.items())
    return (
        f"these fields of model.config were changed after the model was built, which changes nothing in it: {listed}. "
        f"{what_to_do}"
    )


@contextmanager
def all_as_built(model):
    """Within it every config of `model` and of its stacks holds what it was built from; see `as_built`."""
    configs = {id(part.config): part for part in model.modules() if hasattr(part, "built_fields")}
    with ExitStack() as stack:
        for part in configs.values():
            stack.enter_context(as_built(part.config, part.built_fields))
        yield


@contextmanager
def as_built(config, built):
    """Within it `config` holds what the model was built from; a warning names what was set otherwise."""
    changed = changed_fields(built, config)
    if changed:
        advice = "The checkpoint keeps the values it was built with; to change a toggle, pass it to from_pretrained"
        logger.warning(without_effect(changed, advice))
    for name, (value, _) in changed.items():
        setattr(config, name, copy.deepcopy(value))
    try:
        yield
    finally:
        for name, (_, now) in changed.items():
            setattr(config, name, now)
