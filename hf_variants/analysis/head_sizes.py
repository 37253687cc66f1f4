"""Parameters of the heads other than the language models: what stands in a checkpoint beside the stack."""

from .counts import Size, linear_size, transform_size


def stack_head_size(config):
    """`VariantsModel`: the pooler, if any."""
    return linear_size(config.hidden_size, config.hidden_size, bias=True) if config.pooler else Size()


def task_transform_size(config):
    """The language model's layer before the classifiers, under `task_head="transform"`."""
    return transform_size(config) if config.task_head == "transform" else Size()


def row_classifier_size(config):
    """`VariantsForSequenceClassification`."""
    hidden, labels = config.hidden_size, config.num_labels
    size = linear_size(hidden, labels, bias=config.task_head != "linear") + task_transform_size(config)
    if config.task_head == "pooler":
        return size + stack_head_size(config)
    return size + linear_size(hidden, hidden, bias=True) if config.classifier_act is not None else size


def token_classifier_size(config):
    """`VariantsForTokenClassification`."""
    return linear_size(config.hidden_size, config.num_labels, bias=True) + task_transform_size(config)


def span_size(config):
    """`VariantsForQuestionAnswering`."""
    return linear_size(config.hidden_size, 2, bias=True) + task_transform_size(config)
