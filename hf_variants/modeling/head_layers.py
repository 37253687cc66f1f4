"""What stands between the stack and the last projection of a head: a dense layer with its activation, and its kin.

Notable here: `build_transform` makes the layer before the language-model head, `build_score` the classifier that
`task_head` names (`TASK_HEADS`); both are plain where the config asks for nothing.
"""

from torch import nn

from .feed_forward import activation
from .norms import build_norm


class VariantsHeadTransform(nn.Module):
    """norm(act(dense(x))), to the width of the embedding (BERT's masked-language head)."""

    def __init__(self, config, width):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, width, bias=config.lm_head_transform_bias)
        self.act_fn = activation(config.lm_head_act)
        self.norm = build_norm(config, width)

    def forward(self, hidden_states):
        return self.norm(self.act_fn(self.dense(hidden_states)))


def build_transform(config):
    """The layer before the language-model head, and the width that it hands on."""
    width = config.lm_head_width
    if config.lm_head_act is not None:
        return VariantsHeadTransform(config, width), width
    narrows = config.embedding_projection == "tokens"
    return (nn.Linear(config.hidden_size, width, bias=False) if narrows else nn.Identity()), width


class DenseScore(nn.Module):
    """out_proj(dropout(act(dense(x)))): a classifier with a hidden layer (RoBERTa 2019, arXiv:1907.11692)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act_fn = activation(config.classifier_act)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, states):
        return self.out_proj(self.dropout(self.act_fn(self.dense(states))))


def classifier_dropout(config):
    """Dropout before a classifier of rows: `classifier_dropout`; else `hidden_dropout`, and none before a bare one."""
    if config.classifier_dropout is not None:
        return config.classifier_dropout
    return 0.0 if config.task_head == "linear" else config.hidden_dropout


def token_classifier_dropout(config):
    """Dropout before a classifier of tokens: its own, else `classifier_dropout`, else `hidden_dropout`."""
    chosen = (config.token_classifier_dropout, config.classifier_dropout, config.hidden_dropout)
    return next(value for value in chosen if value is not None)


def linear_score(config):
    return nn.Linear(config.hidden_size, config.num_labels)


def bare_score(config):
    return nn.Linear(config.hidden_size, config.num_labels, bias=False)


# task_head -> (the classifier of rows, whether what enters it is dropped)
TASK_HEADS = {
    "linear": (bare_score, True),
    "biased_linear": (linear_score, True),
    "pooler": (linear_score, True),
    "dense": (DenseScore, False),
    "dropped_dense": (DenseScore, True),
    "transform": (linear_score, True),
}


def build_score(config):
    """The classifier of rows that `config.task_head` names, and the dropout before it."""
    score, drops = TASK_HEADS[config.task_head]
    return score(config), nn.Dropout(classifier_dropout(config) if drops else 0.0)


def build_task_transform(config):
    """The layer before the classifiers of rows, tokens and answers: that of the language model, or none."""
    return build_transform(config)[0] if config.task_head == "transform" else nn.Identity()
