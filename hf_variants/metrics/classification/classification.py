"""Accuracy, macro F1 and Matthews correlation as one `evaluate` metric, from one confusion matrix."""

# One import per line: the library's reader of requirements takes `import a, b` for a single package.
import datasets
import evaluate
import numpy

_DESCRIPTION = """Accuracy; F1 averaged over the classes that occur (as predictions or references); and the Matthews
correlation of several classes (Gorodkin 2004), 0 for predictions that are unrelated to the references."""

_CITATION = """"""

_INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): true classes.
Returns:
    accuracy, macro_f1, matthews_correlation, examples.
"""


class Classification(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions, references):
        classes = max(max(predictions), max(references)) + 1
        # rows: references, columns: predictions
        confusion = numpy.zeros((classes, classes))
        numpy.add.at(confusion, (numpy.asarray(references), numpy.asarray(predictions)), 1)
        hits, actual, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        total, met = confusion.sum(), (actual + predicted) > 0
        spread = (total**2 - (predicted**2).sum()) * (total**2 - (actual**2).sum())
        covariance = hits.sum() * total - (actual * predicted).sum()
        return {
            "accuracy": float(hits.sum() / total),
            "macro_f1": float((2 * hits[met] / (actual + predicted)[met]).mean()),
            "matthews_correlation": float(covariance / numpy.sqrt(spread)) if spread else 0.0,
            "examples": int(total),
        }
