"""BLEU, chrF and exact match of texts against references as one `evaluate` metric; sacrebleu does the counting."""

# One import per line: the library's reader of requirements takes `import a, b` for a single package.
import datasets
import evaluate
import sacrebleu

_DESCRIPTION = """Corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015) as sacrebleu (Post 2018) counts them, with the
signatures by which others can repeat them; and the share of predictions that equal a reference, outer blanks aside. Higher is
better. Where no prediction has four words, BLEU counts the n-grams that there are, and its signature says eff:yes."""

_CITATION = """"""

_INPUTS = """
Args:
    predictions (list of str): texts of the model.
    references (list of str, or of lists of str): one or several right texts for each; all with equally many.
    lowercase (bool): whether BLEU and chrF ignore case; exact match never does.
    tokenize (str): tokenizer of BLEU: 13a (default), intl, zh, ja-mecab, char, ...
    word_order (int): 0 for chrF, 2 for chrF++.
Returns:
    bleu, chrf (0 to 100), exact_match (0 to 1), bleu_signature, chrf_signature, examples.
"""


class Translation(evaluate.Metric):
    def _info(self):
        one = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        several = {"predictions": datasets.Value("string"), "references": datasets.List(datasets.Value("string"))}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=[datasets.Features(several), datasets.Features(one)],
        )

    def _compute(self, predictions, references, lowercase=False, tokenize=None, word_order=0):
        references = [[right] if isinstance(right, str) else list(right) for right in references]
        counts = {len(rights) for rights in references}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"references must hold equally many texts for each prediction, at least one; got {sorted(counts)}"
            )
        columns = list(map(list, zip(*references, strict=True)))
        known = sacrebleu.BLEU.TOKENIZERS
        if tokenize is not None and tokenize not in known:
            raise ValueError(f"tokenize={tokenize!r} is unknown to sacrebleu; choose from {sorted(filter(None, known))}")
        bleu = sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenize)
        if not bleu.corpus_score(predictions, columns).totals[-1]:
            # texts of less than four words hold none of the longest n-grams, and the score would be 0 whatever they say
            bleu = sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=True)
        chrf = sacrebleu.CHRF(lowercase=lowercase, word_order=word_order)
        hits = [
            text.strip() in {right.strip() for right in rights} for text, rights in zip(predictions, references, strict=True)
        ]
        return {
            "bleu": bleu.corpus_score(predictions, columns).score,
            "chrf": chrf.corpus_score(predictions, columns).score,
            "exact_match": sum(hits) / len(hits),
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
            "examples": len(hits),
        }
