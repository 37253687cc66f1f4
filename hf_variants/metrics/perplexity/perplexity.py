"""Perplexity of a causal model as an `evaluate` metric; `hf_variants.evaluation.perplexity` does the measuring."""

import evaluate

_DESCRIPTION = """Perplexity of documents under a causal model: exp of the mean negative log likelihood per token, in
fp32, every token scored once with up to `window` - 1 tokens of context from its own document."""

_CITATION = """"""

_INPUTS = """
Args:
    predictions (list of str): documents.
    model_id (str): checkpoint directory or Hub id; or give `model` and `tokenizer`.
    model, tokenizer: objects to use instead of `model_id`.
    window, stride, batch_size, max_tokens: as in hf_variants.evaluation.perplexity.corpus_perplexity.
    position_buckets (int): add `by_position`, perplexities in so many equal ranges of positions.
    per_document (bool): add `documents`, the same numbers for each document.
Returns:
    perplexity, loss (nats per token), bits_per_byte, tokens, num_bytes, window, stride.
"""


class Perplexity(evaluate.Metric):
    def _info(self):
        from hf_variants.metrics import metric_info

        return metric_info(_DESCRIPTION, _CITATION, _INPUTS)

    def _compute(
        self, predictions, model_id=None, model=None, tokenizer=None, position_buckets=None, per_document=False, **options
    ):
        from hf_variants.evaluation.perplexity import corpus_perplexity, position_edges
        from hf_variants.metrics import opened

        model, tokenizer = opened("perplexity", model_id, model, tokenizer)
        measured = corpus_perplexity(model, tokenizer, predictions, **options)
        result = measured.to_dict()
        if position_buckets is not None:
            result["by_position"] = measured.by_position(position_edges(measured.window, position_buckets))
        if per_document:
            result["documents"] = measured.per_document()
        return result
