"""The checkpoint that a context extension starts from: of the family, or native and converted in memory."""


def starting_config(spec):
    """`VariantsConfig` of spec.model_path, of whatever family. Raises ValueError where it holds no model of a known one."""
    from transformers import AutoConfig

    import hf_variants  # noqa: F401 - registers the family with the Auto classes

    from ..convert.config_conversion import config_from_native
    from ..convert.native_checkpoint import known_family
    from ..training.models import no_model

    source = {} if spec.gguf_file is None else {"gguf_file": spec.gguf_file}
    try:
        config = AutoConfig.from_pretrained(spec.model_path, **source)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(spec.model_path, error) from None
    if config.model_type == "variants":
        return config
    known_family(config, f"model_path={spec.model_path!r}")
    return config_from_native(config)


def starting_model(spec, announce):
    """(model of the family in spec.dtype, tokenizer) of spec.model_path. Raises ValueError where either is missing."""
    import torch
    from transformers import AutoConfig, AutoTokenizer

    from ..convert import from_native
    from ..training.models import open_checkpoint

    source = {} if spec.gguf_file is None else {"gguf_file": spec.gguf_file}
    if AutoConfig.from_pretrained(spec.model_path, **source).model_type == "variants":
        return open_checkpoint(spec.model_path, spec.dtype)
    announce(f"context: converting {spec.model_path}")
    model = from_native(spec.model_path, dtype=getattr(torch, spec.dtype), gguf_file=spec.gguf_file)
    tokenizer = AutoTokenizer.from_pretrained(spec.model_path, **source)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"model_path={spec.model_path!r} has a tokenizer without eos token; documents need one to end with")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), tokenizer
