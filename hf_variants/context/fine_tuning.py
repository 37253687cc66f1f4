"""Fine-tuning on longer rows, in one stage or in several of growing length, each in a directory of its own.

    output_dir/stages/1-of-2-2048   output_dir/stages/2-of-2-4096   output_dir (the final model)

Notable here: a finished stage is not trained again, its weights are read; every row of `rows: long` lies within one document.
"""

from pathlib import Path

from ..training.arguments import training_arguments
from ..training.idle_keys import changed_keys
from ..training.processes import is_writer, together
from ..training.stages import run_stage


def check_lengths_of_training(spec, original, limit):
    """Raise a ValueError where the rows of the fine-tuning do not fit the old and the new context."""
    if not spec.trains():
        if spec.distributed:
            raise ValueError(f"distributed={spec.distributed!r} has no effect: trainer.max_steps=0 trains nothing")
        return
    lengths = [stage.length for stage in spec.stages] or [spec.data.sequence_length]
    name = "stages" if spec.stages else "data.sequence_length"
    if any(later <= earlier for earlier, later in zip(lengths, lengths[1:], strict=False)):
        raise ValueError(f"stages have the lengths {lengths}, which must grow")
    if not original < lengths[-1] <= limit:
        raise ValueError(
            f"{name}={lengths[-1]} must lie in ({original}, {limit}]: longer than the old context, so that fine-tuning meets "
            f"new distances, and within the new one (factor={spec.factor} times {original})"
        )
    if lengths[0] < 2:
        raise ValueError(f"stages have the lengths {lengths}; a row has at least 2 tokens")
    for index, stage in enumerate(spec.stages):
        if stage.steps < 1:
            raise ValueError(f"stages[{index}].steps={stage.steps} must be at least 1")


def unused_with_stages(spec):
    """{dotted key: value} of what says how long rows and training are, where `stages` say it."""
    if not spec.stages:
        return {}
    given = {f"trainer.{name}": spec.trainer[name] for name in ("max_steps", "num_train_epochs") if name in spec.trainer}
    changed = changed_keys(spec)
    return {**given, **{name: changed[name] for name in ("data.sequence_length",) if name in changed}}


def fine_tune(spec, model, tokenizer, train_texts, eval_texts, texts, announce):
    """Train as the spec says and save into spec.output_dir.

    Returns:
        (model, numbers of the last training or None, numbers of every stage).
    """
    if not spec.trains():
        with together():
            if is_writer():
                model.save_pretrained(spec.output_dir)
                tokenizer.save_pretrained(spec.output_dir)
        return model, None, []
    inputs = (tokenizer, train_texts, eval_texts, texts, announce)
    if not spec.stages:
        model = _spread(spec.training(), model, None)
        return model, _train(spec.training(), model, *inputs), []
    results, folder = [], None
    for number, stage in enumerate(spec.stages, start=1):
        last = number == len(spec.stages)
        before, folder = folder, str(Path(spec.output_dir) / "stages" / f"{number}-of-{len(spec.stages)}-{stage.length}")
        training = spec.training(stage, spec.output_dir if last else folder)
        announce(f"context: stage {number} of {len(spec.stages)}: {stage.steps} steps on rows of {stage.length:,} tokens")
        if last:
            model = _spread(training, model, before)
            results.append({"length": stage.length, **_train(training, model, *inputs)})
            continue
        work = lambda: _train(training, _spread(training, model, before), *inputs)  # noqa: E731, B023
        settings = {"training": training.to_dict(), "texts": texts, "before": results, "rope": model.config.rope_parameters}
        done = {"trained": False}
        launch = training_arguments(training)
        result = run_stage("lengthen", folder, settings, _noting(work, done), True, announce, arguments=launch)
        if not done["trained"] and not training.distributed:
            _read_weights(model, folder)
        results.append({"length": stage.length, **result})
    return model, results[-1], results


def _noting(work, done):
    def noted():
        done["trained"] = True
        return work()

    return noted


def _read_weights(model, folder):
    from ..training.models import load_model

    model.load_state_dict(load_model(folder, dtype=model.dtype).state_dict())


def _spread(training, model, folder):
    """The model, or where it shall be sharded each process's part of it: of `folder`, where an earlier stage left it.

    Each stage reads its weights anew, since an optimizer that is made after a forward pass would miss shards.
    """
    if not training.distributed:
        return model
    from transformers import AutoModelForCausalLM

    from ..training.models import load_model
    from ..training.sharding import load_sharded

    if folder is not None:
        return load_model(folder, distributed=training.distributed, dtype=model.dtype)
    return load_sharded(training, training_arguments(training), lambda: model, AutoModelForCausalLM, model.dtype)


def _train(training, model, tokenizer, train_texts, eval_texts, texts, announce):
    from ..training.pretraining import prepare_rows, train

    data = prepare_rows(training, tokenizer, train_texts, eval_texts, texts, announce)
    return train(model, data, training, announce)
