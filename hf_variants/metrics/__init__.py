"""Metrics for the `evaluate` library, shipped with the package.

hf_variants.metrics.load_metric("perplexity").compute(predictions=texts, model_id="path/of/a/checkpoint")
"""

from pathlib import Path

from ..modeling.vocabulary import nearest


def metric_names():
    """Names that `load_metric` knows, sorted."""
    return sorted(path.name for path in Path(__file__).parent.iterdir() if (path / f"{path.name}.py").is_file())


def metric_info(description, citation, inputs, predictions="string"):
    """`evaluate.MetricInfo` of a metric of this package, whose `predictions` are texts or numbers."""
    import datasets
    import evaluate

    features = datasets.Features({"predictions": datasets.Value(predictions)})
    return evaluate.MetricInfo(description=description, citation=citation, inputs_description=inputs, features=features)


def opened(name, model_id, model, tokenizer):
    """(model, tokenizer) of a checkpoint, or those given. Raises ValueError naming the metric where neither is complete."""
    from ..training.models import open_checkpoint

    if model_id is not None:
        return open_checkpoint(model_id)
    if model is None or tokenizer is None:
        raise ValueError(f"{name} needs model_id, or both model and tokenizer")
    return model, tokenizer


def load_metric(name, **kwargs):
    """`evaluate.load` of a metric of this package; works offline. Raises ValueError for an unknown name."""
    import evaluate

    if name not in metric_names():
        raise ValueError(f"metric {name!r} is unknown{nearest(name, metric_names())}; choose from {metric_names()}")
    return evaluate.load(str(Path(__file__).parent / name / f"{name}.py"), **kwargs)
