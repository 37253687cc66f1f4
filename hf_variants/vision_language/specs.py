"""Every key of the `vision-language` recipe, as dataclasses, and what they cannot be together.

Notable here: the phases are a list in the recipe, each with the parts that it trains, so that freezing is read off the page;
the sections `text`, `tower` and `bridge` take the keys of the family's configs by their own names.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..training.bounds import SEEDS, check_numbers
from ..training.spec_parsing import key

PARTS = ("tower", "bridge", "text")
# what a phase learns from -> the parts that it can train
READS = {"labels": ("tower",), "words": ("text",), "images": PARTS}
# Keys of the sections that the task decides.
_DECIDED = {
    "text": ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"),
    "tower": ("num_channels",),
    "bridge": ("model_type", "text_config", "vision_config", "image_token_id"),
}


@dataclass
class DigitsSpec:
    """The digits task: images of scikit-learn, questions of a grammar."""

    held_out: float = key("share of the images that are held out", 0.2, above=0, below=1)
    held_out_phrases: float = key("share of the combinations of phrases that are held out", 0.25, above=0, below=1)
    split_seed: int = key("seed of both choices", 0, **SEEDS)
    kinds: list[str] = key("kinds of questions", factory=lambda: ["digit", "count", "larger", "same", "sum"])
    jiggle: bool = key("turn, stretch, shear, shift and warp training images a little", True)
    eval_examples: int = key("held-out questions that are answered at the end", 1000, least=1)


@dataclass
class PhaseSpec:
    """One phase of training."""

    name: str = key("name of the phase")
    reads: Literal["labels", "words", "images"] = key(
        "labels: single images and the digit each shows, by a probe on the tower that is then dropped; words: questions with "
        "the names of the digits in place of the images; images: questions with images",
        "images",
    )
    trains: list[str] = key("parts that are trained, of tower, bridge and text; the rest is frozen", factory=list)
    steps: int = key("optimizer steps", 500, least=1)
    batch_size: int = key("questions, or for labels images, per step", 64, least=1)
    learning_rate: float = key("peak of the learning rate", 1e-3, above=0)


@dataclass
class VisionLanguageSpec:
    """A vision-language model, from new weights to answers on held-out images."""

    output_dir: str = key("directory of the run: phases, the final model, report.html")
    text: dict = key("VariantsConfig keys of the language model", factory=dict)
    tower: dict = key("config of the image tower, with its model_type", factory=dict)
    bridge: dict = key("VariantsVisionConfig keys: bridge, token_compression, projector, ...", factory=dict)
    data: DigitsSpec = key("the task", factory=DigitsSpec)
    phases: list[PhaseSpec] = key("what is trained, in order", factory=list)
    trainer: dict = key("TrainingArguments of every phase, by their own names", factory=dict)
    measure_every: int = key("steps between measures of alignment, in phases that read images; 0: none", 100, least=0)
    examples: int = key("questions that the report shows with their images", 12, least=0)
    seed: int = key("seed of weights and examples", 0, **SEEDS)
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)

    def to_dict(self):
        """The spec as plain nested dicts, as YAML would hold it."""
        return dataclasses.asdict(self)


def check_spec(spec):
    """Refuse a `VisionLanguageSpec` that cannot be run. Raises ValueError naming key, value, reason and choices."""
    from .examples import KINDS

    check_numbers(spec)
    for section, names in _DECIDED.items():
        for name in names:
            if name in getattr(spec, section):
                raise ValueError(f"{section}.{name}={getattr(spec, section)[name]!r} is decided by the task; leave it out")
    unknown = [kind for kind in spec.data.kinds if kind not in KINDS]
    if unknown or not spec.data.kinds:
        raise ValueError(f"data.kinds={spec.data.kinds} must be some of {list(KINDS)}")
    if spec.examples > spec.data.eval_examples:
        raise ValueError(f"examples={spec.examples} must be at most data.eval_examples={spec.data.eval_examples}")
    if not spec.phases:
        raise ValueError("phases is empty, so nothing would be trained; give at least one phase")
    names = [phase.name for phase in spec.phases]
    if len(set(names)) != len(names):
        raise ValueError(f"phases have the names {names}; each must have its own")
    for phase in spec.phases:
        _check_phase(phase)


def _check_phase(phase):
    if not phase.name or not phase.name.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"phase name={phase.name!r} names a folder; choose letters, digits, - and _")
    possible = READS[phase.reads]
    wrong = [part for part in phase.trains if part not in possible]
    if wrong or not phase.trains:
        raise ValueError(
            f"phase {phase.name!r}: trains={phase.trains} must be some of {list(possible)}, which "
            f"reads={phase.reads!r} reaches"
        )
