"""Token types: a table that says which part of an input (question, context ...) each token belongs to.

Notable here: row 0 is added where no types are given (BERT 2018, arXiv:1810.04805 §3); a model without the table accepts the
zeros that tokenizers add unasked and refuses any other type, which would do nothing.
"""

from torch import nn
from transformers.utils.import_utils import is_tracing


class TokenTypes(nn.Embedding):
    """A trained table of `type_vocab_size` rows, added to the embeddings."""

    def __init__(self, config):
        super().__init__(config.type_vocab_size, config.table_width)

    def forward(self, inputs_embeds, token_type_ids):
        """inputs_embeds [B, T, width]; token_type_ids [B or 1, T] or None. Raises ValueError for a type without a row."""
        if token_type_ids is None:
            return inputs_embeds + self.weight[0]
        check_shape(token_type_ids, inputs_embeds)
        if not is_tracing(token_type_ids) and not 0 <= int(token_type_ids.min()) <= int(token_type_ids.max()) < len(
            self.weight
        ):
            raise ValueError(
                f"token_type_ids reach from {int(token_type_ids.min())} to {int(token_type_ids.max())}, but the table has "
                f"type_vocab_size={len(self.weight)} rows"
            )
        return inputs_embeds + super().forward(token_type_ids)


class NoTokenTypes(nn.Module):
    """Stands in where there is no table."""

    def forward(self, inputs_embeds, token_type_ids):
        if token_type_ids is not None and not is_tracing(token_type_ids) and bool(token_type_ids.any()):
            raise ValueError(
                f"token_type_ids hold {int(token_type_ids.max())}, but this model has no table of types (type_vocab_size=0); "
                "leave token_type_ids out"
            )
        return inputs_embeds


def check_shape(token_type_ids, inputs_embeds):
    """Refuse types that are not one per token."""
    batch, length = inputs_embeds.shape[:2]
    if token_type_ids.dim() != 2 or token_type_ids.shape[1] != length or token_type_ids.shape[0] not in (1, batch):
        raise ValueError(
            f"token_type_ids has the shape {tuple(token_type_ids.shape)}; give [{batch}, {length}], as the tokens"
        )


def build_token_types(config):
    """The table of `config`, or its stand-in."""
    return TokenTypes(config) if config.type_vocab_size else NoTokenTypes()
