"""Which tokens see each other in both directions for the images among them: the choices of `image_attention`."""

import torch

from .masks import Blocks


def no_blocks(model, input_ids, lengths, token_type_ids, past_key_values):
    return None


def image_blocks(model, input_ids, lengths, token_type_ids, past_key_values):
    """The tokens of each image, its delimiters included."""
    if lengths is None:
        return None
    is_image = input_ids == model.config.image_token_id
    numbers = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths)).to(input_ids.device)
    return Blocks(torch.zeros_like(input_ids).masked_scatter(is_image, numbers), windowed=True)


def prefix_block(model, input_ids, lengths, token_type_ids, past_key_values):
    """All tokens of type 0; behind cached tokens none, for the prefix ends where it was first run.

    Raises:
        ValueError: without `token_type_ids`.
    """
    cached = past_key_values is not None and past_key_values.get_seq_length() > 0
    if cached and lengths is None:
        return None
    if token_type_ids is None:
        raise ValueError(
            "image_attention='prefix' needs token_type_ids, 0 for the tokens that all see each other (images and prompt) and "
            "1 for those that follow"
        )
    return Blocks((token_type_ids == 0).long(), windowed=False)


# image_attention -> (model, input_ids, lengths, token types, cache) -> `Blocks` or None
IMAGE_BLOCKS = {"causal": no_blocks, "bidirectional": image_blocks, "prefix": prefix_block}
