"""Bits per byte of a causal model as an `evaluate` metric; `hf_variants.evaluation.perplexity` does the measuring."""

import evaluate

_DESCRIPTION = """Bits that a causal model needs per UTF-8 byte of text: the negative log likelihood in base 2, over the bytes.
Unlike perplexity it does not depend on the tokenizer, so models with different vocabularies compare."""

_CITATION = """"""

_INPUTS = """
Args:
    predictions (list of str): documents.
    model_id (str): checkpoint directory or Hub id; or give `model` and `tokenizer`.
    model, tokenizer: objects to use instead of `model_id`.
    window, stride, batch_size, max_tokens: as in hf_variants.evaluation.perplexity.corpus_perplexity.
Returns:
    bits_per_byte, num_bytes, tokens, tokens_per_byte.
"""


class BitsPerByte(evaluate.Metric):
    def _info(self):
        from hf_variants.metrics import metric_info

        return metric_info(_DESCRIPTION, _CITATION, _INPUTS)

    def _compute(self, predictions, model_id=None, model=None, tokenizer=None, **options):
        from hf_variants.evaluation.perplexity import corpus_perplexity
        from hf_variants.metrics import opened

        model, tokenizer = opened("bits_per_byte", model_id, model, tokenizer)
        measured = corpus_perplexity(model, tokenizer, predictions, **options)
        counts = {"num_bytes": measured.num_bytes, "tokens": measured.tokens}
        share = measured.tokens / measured.num_bytes if measured.num_bytes else None
        return {"bits_per_byte": measured.bits_per_byte, **counts, "tokens_per_byte": share}
