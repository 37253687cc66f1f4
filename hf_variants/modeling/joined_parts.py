"""A vision-language model made of a trained language model and a trained tower."""

import copy

from torch import nn


def join_parts(cls, language_model, vision_model, image_token_id, **keys):
    """What `VariantsForImageTextToText.from_parts` documents; `cls` is that class.

    Raises:
        ValueError: for a language model that is none of ours, and a tower that lacks weights.
    """
    if not hasattr(language_model.config, "layer_plan") or not hasattr(language_model, "lm_head"):
        raise ValueError(
            f"{type(language_model).__name__} is no VariantsForCausalLM; bring it in with hf_variants.convert.from_native"
        )
    text, vision = copy.deepcopy(language_model.config), copy.deepcopy(vision_model.config)
    config = cls.config_class(text_config=text, vision_config=vision, image_token_id=image_token_id, **keys)
    model = cls(config).to(language_model.dtype)
    model.model.language_model.load_state_dict(language_model.model.state_dict(), strict=False)
    model.lm_head.load_state_dict(language_model.lm_head.state_dict())
    if not isinstance(model.transform, nn.Identity):
        model.transform.load_state_dict(language_model.transform.state_dict())
    tower = model.model.vision_tower.vision_model
    given = vision_model.state_dict()
    missing = [name for name in tower.state_dict() if name not in given]
    if missing:
        raise ValueError(f"{type(vision_model).__name__} lacks weights that the tower has: {missing[:6]}")
    tower.load_state_dict({name: given[name] for name in tower.state_dict()})
    model.generation_config = copy.deepcopy(language_model.generation_config)
    return model
