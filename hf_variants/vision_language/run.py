"""`vision_language`: new weights -> phases -> answers on held-out images -> checkpoint -> report.

    output_dir/phases/N-name   the model behind each phase
              /model           weights, processor, card, code: AutoModelForImageTextToText and AutoProcessor read it
              /results.json    accuracies, answers, alignment, attention
              /report.html

Notable here: the model is answered for as it is read back from its folder; a finished run or phase is recognised and skipped.
"""

import os
import shutil
from pathlib import Path

from ..training.processes import is_writer, print_once, together
from ..training.stages import fingerprint_of, run_stage, write_json
from .answering import SPLITS, accuracies, answers, pictures_of
from .batches import maker_of
from .digits import load_digits
from .measures import alignment_measure, attention_readings
from .phases import run_phase, split_over, trainer_arguments
from .specs import check_spec
from .words import word_tokenizer

EVAL_SEED = 10_000


def vision_language(spec, announce=print_once):
    """Run a `VisionLanguageSpec`; finished work is not done again.

    Returns:
        dict: accuracies per split and kind, phases (seconds, log, measures of each), examples (prompt, answer, given),
        attention, alignment, parameters, tokens_per_image, seconds, model (the folder).

    Raises:
        ValueError: for a spec that cannot be run, before any training; or when output_dir holds a run of other settings.
    """
    with together():
        check_spec(spec)
        train, held_out = load_digits(spec.data.held_out, spec.data.split_seed)
        tokenizer = word_tokenizer()
        config = config_of(spec, tokenizer)
        side_of(config)
    arguments = [trainer_arguments(spec, phase, spec.output_dir) for phase in spec.phases][-1]
    settings = {key: value for key, value in spec.to_dict().items() if key not in ("output_dir", "overwrite")}
    settings.update(split_over(arguments))

    def work():
        return _run(spec, config, tokenizer, train, held_out, announce)

    result = run_stage(
        "vision-language", spec.output_dir, settings, work, overwrite=spec.overwrite, announce=announce, arguments=arguments
    )
    if is_writer():
        from .report import write_vision_report

        write_vision_report(Path(spec.output_dir) / "report.html", spec, result, held_out)
    announce(f"report: {Path(spec.output_dir) / 'report.html'}")
    return result


def config_of(spec, tokenizer):
    """The `VariantsVisionConfig` of a recipe. Raises ValueError for what the configs refuse."""
    from ..modeling.configuration_variants_vision import VariantsVisionConfig

    text = {
        **{"max_position_embeddings": 128, **spec.text, "vocab_size": len(tokenizer)},
        **{"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id},
        "eos_token_id": tokenizer.eos_token_id,
    }
    image = tokenizer.convert_tokens_to_ids("<image>")
    tower = {"model_type": "variants_image_encoder", **spec.tower, "num_channels": 1}
    return VariantsVisionConfig(text_config=text, vision_config=tower, image_token_id=image, **spec.bridge)


def _run(spec, config, tokenizer, train, held_out, announce):
    from transformers import AutoModelForImageTextToText, AutoProcessor, set_seed

    from ..modeling.modeling_variants_vision import VariantsForImageTextToText

    set_seed(spec.seed)
    model = VariantsForImageTextToText(config)
    side = side_of(config)
    measure = alignment_measure(model, tokenizer, held_out, side)
    before, phases = fingerprint_of({"text": spec.text, "tower": spec.tower, "bridge": spec.bridge, "seed": spec.seed}), []
    for index, phase in enumerate(spec.phases):
        done = run_phase(spec, index, model, tokenizer, train, before, measure, announce)
        before = fingerprint_of({"before": before, "phase": vars(phase)})
        phases.append({"name": phase.name, **{key: value for key, value in done.items() if key != "directory"}})
    folder = save(model, tokenizer, Path(spec.output_dir) / "model")
    model, processor = AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    result = evaluate(spec, model, processor, train, held_out, announce)
    result["phases"], result["seconds"] = phases, sum(phase["seconds"] for phase in phases)
    result["alignment"] = alignment_measure(model, tokenizer, held_out, side)()
    maker = maker_of(spec, held_out, True, EVAL_SEED)
    result["attention"] = attention_readings(model, tokenizer, maker.take(min(100, spec.data.eval_examples)), held_out, side)
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    result["tokens_per_image"] = config.tokens_of_image()
    result["model"] = str(folder)
    if is_writer():
        write_json(Path(spec.output_dir) / "results.json", result)
    return result


def evaluate(spec, model, processor, train, held_out, announce=print_once):
    """{accuracies: {split: {"all", kind, ...}}, examples: [{kind, prompt, answer, given, images}]}."""
    side, found, shown = side_of(model.config), {}, []
    for name, (images_out, phrases_out) in SPLITS.items():
        images = held_out if images_out else train
        examples = maker_of(spec, images, phrases_out, EVAL_SEED).take(spec.data.eval_examples)
        given = answers(model, processor, examples, pictures_of(images, side))
        found[name] = accuracies(examples, given)
        announce(f"{name}: {found[name]['all']:.1%} of {found[name]['answers']} answers are right")
        if images_out and phrases_out:
            shown = _shown(examples, given, spec.examples)
    return {"accuracies": found, "examples": shown}


def _shown(examples, given, count):
    """The first `count` examples, half of them wrong ones where there are so many."""
    rows = [
        {"kind": e.kind, "prompt": e.prompt, "answer": e.answer, "given": answer, "images": list(e.images)}
        for e, answer in zip(examples, given, strict=True)
    ]
    wrong = [row for row in rows if row["given"] != row["answer"]][: count // 2]
    right = [row for row in rows if row["given"] == row["answer"]][: count - len(wrong)]
    return right + wrong


def side_of(config):
    """Pixels of a side of the square images that the tower reads. Raises ValueError where they are not square."""
    size = config.vision_config.image_size
    sides = set(size) if isinstance(size, (list, tuple)) else {size}
    if len(sides) != 1:
        raise ValueError(f"tower.image_size={size} is not square, but digits are; give one number")
    return sides.pop()


def save(model, tokenizer, folder):
    """Write model and processor to `folder`, whole or not at all; returns it. All processes call it together."""
    with together():
        if is_writer():
            _write(model, tokenizer, folder)
    return folder


def _write(model, tokenizer, folder):
    from ..modeling.processing_variants import VariantsProcessor

    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    VariantsProcessor.for_model(model.config, tokenizer).save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
