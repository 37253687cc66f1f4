"""Perplexity of a causal model as an `evaluate` metric; `hf_variants.evaluation.perplexity` does the measuring."""

# One import per line: the library's reader of requirements takes `import a, b` for a single package.
import datasets
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
Returns:
    perplexity, loss (nats per token), bits_per_byte, tokens, num_bytes, window, stride.
"""


class Perplexity(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions, model_id=None, model=None, tokenizer=None, **options):
        from hf_variants.evaluation.perplexity import corpus_perplexity
        from hf_variants.training.models import open_checkpoint

        if model_id is not None:
            model, tokenizer = open_checkpoint(model_id)
        if model is None or tokenizer is None:
            raise ValueError("perplexity needs model_id, or both model and tokenizer")
        return corpus_perplexity(model, tokenizer, predictions, **options).to_dict()
