"""The `KEY=VALUE` words of a command that reads a config, and a note on what a config does not tell of its checkpoint.

Notable here: such a command takes any `--key value`, so an option that is misspelt would be called a key of the config.
"""

from difflib import get_close_matches

from ..training.spec_parsing import parse_words
from .console import errors


def config_words(context, words):
    """{key: value} of `words`.

    Args:
        context: the `typer.Context` of the command.

    Raises:
        ValueError: for a word that is no setting, and an option that no key of a config is meant by.
    """
    pairs = dict(parse_words(words or ()))
    options = [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]
    for word in words or ():
        option = word.partition("=")[0]
        near = get_close_matches(option, options, n=1, cutoff=0.7)
        if option.startswith("--") and near and not _is_key(option):
            raise ValueError(
                f"{option} is no option of {context.command.name} (did you mean {near[0]}?), and no key of a config"
            )
    return pairs


def _is_key(option):
    from ..modeling.configuration_variants import VariantsConfig

    key = option.removeprefix("--").replace("-", "_")
    return "." in key or key in VariantsConfig.__annotations__


def note_quantized(*sources):
    """Say on stderr which sources are quantized checkpoints, for their configs are counted as those of dense weights."""
    from ..convert.config_source import quantization_of

    for source in dict.fromkeys(sources):
        method = quantization_of(source)
        if method is not None:
            errors.print(
                f"note: {source} is quantized ({method}); its weights are counted as dense ones", markup=False, soft_wrap=True
            )
