"""`hf-variants generate`: continuations of prompts, batched, with any option of transformers' GenerationConfig."""

from pathlib import Path

from ..training.arguments import check_generation_section
from ..training.bounds import check_numbers
from ..training.models import check_device, open_checkpoint
from ..training.processes import print_once, refuse_several_processes

DEFAULTS = {"max_new_tokens": 64}


def generate(spec, announce=print_once):
    """Continue the prompts of a `GenerateSpec`; an encoder-decoder reads them and writes its own text.

    Returns:
        list of dicts {prompt, text}, text being what was written alone.

    Raises:
        ValueError: without prompts, or for a generation key that GenerationConfig does not know.
    """
    check_generation(spec)
    prompts, options = prompts_of(spec), {**DEFAULTS, **spec.generation}
    model, tokenizer = open_checkpoint(spec.model_path, spec.dtype, spec.device)
    if model.config.is_encoder_decoder:
        texts = _written(model, tokenizer, prompts, options, spec.seed)
    else:
        texts = continue_prompts(model, tokenizer, prompts, options, spec.seed)
    records = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    for record in records:
        announce(f"{record['prompt']}|{record['text']}\n")
    if spec.output is not None:
        from ..training.stages import write_json

        Path(spec.output).parent.mkdir(parents=True, exist_ok=True)
        write_json(spec.output, records)
    return records


def _written(model, tokenizer, prompts, options, seed):
    from transformers import set_seed

    from ..seq2seq.writing import write_texts

    set_seed(seed)
    return write_texts(model, tokenizer, prompts, options)


def check_generation(spec):
    """Refuse what no checkpoint could continue, before one is read. Raises ValueError."""
    check_numbers(spec)
    refuse_several_processes("generate")
    check_device(spec.device)
    check_generation_section(spec.generation)
    if not prompts_of(spec):
        raise ValueError("prompts is empty; give prompt='...' or prompts=[...]")


def prompts_of(spec):
    """All prompts of a `GenerateSpec`."""
    return spec.prompts + ([] if spec.prompt is None else [spec.prompt])


def continue_prompts(model, tokenizer, prompts, options, seed=0):
    """The continuations (list of str) of a batch of prompts, left-padded."""
    from transformers import set_seed

    set_seed(seed)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    batch.pop("token_type_ids", None)
    output = model.generate(**batch, pad_token_id=tokenizer.pad_token_id, **options)
    return tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
