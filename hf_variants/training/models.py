"""The model of a training run: new weights from a `model` section, or a checkpoint to continue from.

Notable here: vocabulary and special tokens are those of the tokenizer, so that config and tokenizer cannot disagree.
"""

import json
from pathlib import Path

from .sharding import check_distributed, distributed_config, load_sharded
from .tokenizer import load_tokenizer

_AUTO_CLASSES = {"clm": "AutoModelForCausalLM", "mlm": "AutoModelForMaskedLM", "span_corruption": "AutoModelForSeq2SeqLM"}


def model_section(model):
    """The config keys (dict) behind a `model` entry: a mapping, a .json file, or the name of a preset in model_configs/.

    A mapping may name a preset or .json file to start from, of which its other keys replace single ones:
    {"preset": "llama-3-8b", "num_hidden_layers": 4}.

    Raises:
        ValueError: when a file is missing or malformed, or the entry is empty.
    """
    if isinstance(model, dict):
        keys = dict(model)
        start = keys.pop("preset", None)
        if start is not None and not isinstance(start, str):
            raise ValueError(f"model.preset={start!r} is a {type(start).__name__}; it must name a preset or a .json file")
        return {**(model_section(start) if start else {}), **keys}
    if not model:
        raise ValueError("model is empty; give config keys, a .json file, or a preset's name")
    path = Path(model)
    if path.suffix != ".json":
        from ..presets import preset_keys

        return preset_keys(model)
    if not path.is_file():
        raise ValueError(f"model={model!r} is not a file")
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"model={model!r} is not valid JSON: {error}") from None
    if not isinstance(keys, dict):
        raise ValueError(f"model={model!r} holds a {type(keys).__name__}; it must hold config keys")
    return keys


def build_config(model, tokenizer):
    """`VariantsConfig` of a `model` entry for a tokenizer, or `VariantsSeq2SeqConfig` where it has an encoder and a decoder.
    Raises ValueError where the vocabulary does not hold the tokens.

    Token ids of a preset or file are those of another tokenizer, so this one's replace them; ids written in the entry stay.
    """
    section, written = model_section(model), model if isinstance(model, dict) else {}
    if not is_pair(section):
        return draft_config(_filled(section, written, tokenizer, "model"))
    stacks = {
        name: _filled(section.get(name) or {}, written.get(name) or {}, tokenizer, f"model.{name}")
        for name in ("encoder", "decoder")
    }
    # T5's choice: the pad begins what the decoder writes
    ids = {"decoder_start_token_id": tokenizer.pad_token_id, **_tokens(tokenizer)}
    ids = {name: written.get(name, own) for name, own in ids.items()}
    return draft_config({**section, **ids, **stacks})


def draft_config(model):
    """The config of a `model` entry as it stands, without a tokenizer. Raises ValueError where it is refused."""
    import hf_variants

    section = model_section(model)
    own = hf_variants.VariantsSeq2SeqConfig if is_pair(section) else hf_variants.VariantsConfig
    if section.get("model_type", own.model_type) != own.model_type:
        raise ValueError(
            f"model.model_type={section['model_type']!r} is not {own.model_type!r}: a native type means choices that its keys "
            "do not name; convert its checkpoint (hf-variants convert) and give that as model_path, or name a preset"
        )
    if not is_pair(section):
        return hf_variants.VariantsConfig(**section)
    # filled in with that of the tokenizer later
    return hf_variants.VariantsSeq2SeqConfig(**{"decoder_start_token_id": 0, **section})


def is_pair(section):
    """Whether the keys of a model are those of an encoder-decoder."""
    return "encoder" in section or "decoder" in section


def _filled(section, written, tokenizer, where):
    """Config keys of one stack with the vocabulary and the token ids of a tokenizer; ids `written` in the recipe stay."""
    tokens = {name: written.get(name, own) for name, own in _tokens(tokenizer).items()}
    keys = {"vocab_size": len(tokenizer), **section, **tokens}
    if keys["vocab_size"] < len(tokenizer):
        raise ValueError(f"{where}.vocab_size={keys['vocab_size']} is less than the tokenizer's {len(tokenizer)} tokens")
    return keys


def check_model_entry(spec):
    """Refuse a `TrainingSpec` whose model cannot be built, before any work is done. Raises ValueError."""
    from .objectives import check_objective, kind_of

    if (spec.model is None) == (spec.model_path is None):
        given = f"model={spec.model!r}, model_path={spec.model_path!r}"
        raise ValueError(f"give either model (new weights) or model_path (a checkpoint to continue from); got {given}")
    config = draft_config(spec.model) if spec.model is not None else read_config(spec.model_path)
    check_objective(spec, kind_of(config))
    check_rows(spec, config)
    check_distributed(spec, config)


def build_model(spec, tokenizer):
    """The model of a `TrainingSpec` in spec.dtype: drawn with spec.seed, or read from spec.model_path; sharded over the
    processes where spec.distributed says so.

    Raises:
        ValueError: for a model with fewer embeddings than the tokenizer has tokens.
    """
    import torch
    import transformers
    from transformers import set_seed

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    check_model_entry(spec)
    auto = getattr(transformers, _AUTO_CLASSES[spec.objective])
    dtype = getattr(torch, spec.dtype)
    set_seed(spec.seed)
    if spec.model_path is not None:
        model = load_model(spec.model_path, auto, dtype=dtype, distributed=spec.distributed)
        if model.config.vocab_size < len(tokenizer):
            raise ValueError(
                f"model_path={spec.model_path!r} has vocab_size={model.config.vocab_size}, less than the {len(tokenizer)} "
                f"tokens of tokenizer.path={spec.tokenizer.path!r}; leave tokenizer.path out to use the tokenizer of the model"
            )
        check_distributed(spec, model.config)
        return model
    config = build_config(spec.model, tokenizer)
    if spec.distributed:
        from .arguments import training_arguments

        return load_sharded(spec, training_arguments(spec), lambda: auto.from_config(config, dtype=dtype), auto, dtype)
    return auto.from_config(config, dtype=dtype)


def _tokens(tokenizer):
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def read_config(path):
    """The config of a checkpoint, with a ValueError naming `model_path` where it holds no model."""
    from transformers import AutoConfig

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise no_model(path, error) from None


def load_model(path, auto=None, distributed=None, **kwargs):
    """`auto`.from_pretrained (AutoModelForCausalLM) with a ValueError naming `model_path` where it holds no model.

    Args:
        distributed: the section of that name, by which every process reads its part; empty for the whole model.
    """
    from transformers import AutoModelForCausalLM

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    if distributed:
        kwargs["distributed_config"] = distributed_config(distributed)
    try:
        return (auto or AutoModelForCausalLM).from_pretrained(path, **kwargs)
    except (OSError, ValueError) as error:
        raise no_model(path, error) from None


def no_model(path, error):
    """The ValueError that says why nothing could be loaded; one that names what is wrong with a model is kept."""
    empty = Path(path).is_dir() and not (Path(path) / "config.json").is_file()
    if isinstance(error, ValueError) and not empty:
        return error
    reason = "the folder has no config.json" if empty else str(error).strip().splitlines()[0]
    absent = "" if Path(path).is_dir() else "no such folder here; as an id of the Hub: "
    return ValueError(f"model_path={str(path)!r} holds no model: {absent}{reason}")


def check_device(name):
    """Raise a ValueError where torch knows no such device, or this machine has none. "auto" is always one."""
    import torch

    if name == "auto":
        return
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used: {reason}; choose auto, cpu, cuda or cuda:NUMBER") from None


def open_checkpoint(path, dtype="auto", device="auto"):
    """(model in eval mode, tokenizer) of a directory or Hub id. Raises ValueError when either is missing.

    Args:
        dtype: "auto" (as stored), or a name such as "float32". device: "auto" takes CUDA where there is one.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    auto = AutoModelForSeq2SeqLM if getattr(read_config(path), "is_encoder_decoder", False) else None
    return load_model(path, auto, dtype=dtype).to(device).eval(), load_tokenizer(path)


def check_rows(spec, config):
    """Refuse rows of a `TrainingSpec` longer than the positions of a model's config. Raises ValueError."""
    if spec.objective != "span_corruption":
        return check_length(config, spec.data.sequence_length)
    from .objectives import corruption_of_spec

    lengths = corruption_of_spec(spec)
    check_pair_lengths(config, lengths.inputs, lengths.targets)


def check_pair_lengths(config, inputs, targets):
    """Refuse more tokens than the encoder or the decoder of a config has positions for. Raises ValueError."""
    for name, length in (("encoder", inputs), ("decoder", targets)):
        stack = getattr(config, name, None)
        limit = getattr(config if stack is None else stack, "max_position_embeddings", None)
        if limit is not None and length > limit:
            raise ValueError(
                f"the {name} would have {length} tokens in a row, and its max_position_embeddings={limit}; shorten the rows "
                "or give it more positions"
            )


def check_length(config, sequence_length):
    """Refuse rows longer than the positions of a model's config. Raises ValueError."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and sequence_length > limit:
        raise ValueError(
            f"data.sequence_length={sequence_length} exceeds max_position_embeddings={limit}; shorten the "
            "rows or extend the context"
        )
