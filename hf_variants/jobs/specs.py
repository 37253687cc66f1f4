"""The keys of every job beside pretraining, as dataclasses; see `training.specs` for the sections they share."""

from dataclasses import dataclass
from typing import Literal

from ..ablation.specs import AblateSpec
from ..context.extend_spec import ExtendSpec
from ..finetune.specs import FinetuneSpec
from ..seq2seq.specs import PairsSpec, Seq2SeqSpec
from ..studies.extrapolation_specs import ExtrapolateSpec
from ..studies.scaling_specs import ScalingStudySpec
from ..training.bounds import SEEDS
from ..training.spec_parsing import key
from ..training.specs import DataSpec, TrainingSpec
from ..vision_language.specs import VisionLanguageSpec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

__all__ = [
    "AblateSpec",
    "EvaluateSpec",
    "ExtendSpec",
    "ExtrapolateSpec",
    "FinetuneSpec",
    "GenerateSpec",
    "QuantizeSpec",
    "QuickstartSpec",
    "ScalingStudySpec",
    "Seq2SeqSpec",
    "TrainingSpec",
    "VisionLanguageSpec",
]


@dataclass
class EvaluateSpec:
    """Perplexity of a checkpoint on held-out documents."""

    model_path: str = key("checkpoint directory or Hub id")
    data: DataSpec = key("documents", factory=DataSpec)
    part: Literal["eval", "train", "all"] = key("which documents of the split to read", "eval")
    window: int | None = key("tokens per window; null means max_position_embeddings", None, least=2)
    stride: int | None = key("tokens scored per window; null means window - 1", None, least=1)
    batch_size: int = key("windows per forward", 8, least=1)
    max_tokens: int | None = key("stop after so many scored tokens", None, least=1)
    position_buckets: int = key("ranges of positions to report", 8, least=1)
    dtype: Dtype = key("dtype of the weights", "auto")
    device: str = key("cpu, cuda, cuda:1, or auto", "auto")
    output: str | None = key("write the numbers to this .json", None)


@dataclass
class GenerateSpec:
    """Continuations of prompts."""

    model_path: str = key("checkpoint directory or Hub id")
    prompts: list[str] = key("texts to continue", factory=list)
    prompt: str | None = key("one text to continue, beside `prompts`", None)
    generation: dict = key("GenerationConfig keys by their own names (max_new_tokens, do_sample, ...)", factory=dict)
    seed: int = key("seed of sampling", 0, **SEEDS)
    dtype: Dtype = key("dtype of the weights", "auto")
    device: str = key("cpu, cuda, cuda:1, or auto", "auto")
    output: str | None = key("write prompts and texts to this .json", None)


@dataclass
class QuantizeSpec:
    """4- or 8-bit weights: AWQ (activation-aware), plain rounding or int8, in formats that from_pretrained reads."""

    model_path: str = key("checkpoint to quantize: of the family, or native; the first word of the short form")
    output_dir: str = key("directory of the quantized checkpoint; the second word of the short form")
    method: Literal["awq", "rtn", "int8"] = key(
        "awq: Lin et al. 2023, arXiv:2306.00978; rtn: round to nearest; int8: round to nearest in 8 bits, symmetric", "awq"
    )
    bits: int | None = key("bits per weight; null: the method's, 4 (int8: 8)", None)
    group_size: int | None = key(
        "weights that share a scale, must divide the input widths; -1: one scale per output; null: 64 (int8: -1)", None
    )
    symmetric: bool = key("awq, rtn: zero in the middle of the codes, in the same format", False)
    clip: bool = key("awq: search the ends of every group", True)
    compensate: bool = key("awq: let later weights make up for the rounding of earlier ones (GPTQ, arXiv:2210.17323)", True)
    leave_unquantized: list[str] = key("Linears to keep dense: full names or patterns (model.layers.0.*)", factory=list)
    max_bytes: int | None = key(
        "awq: size of the weights; room beyond 4 bits goes to the most sensitive Linears", None, least=1
    )
    to: Literal["variants", "native"] = key(
        "native: in the class and names of the native family, for serving engines", "variants"
    )
    producer: Literal["own", "autoawq"] = key("who quantizes; autoawq: AutoAWQ, in the interpreter producer_python", "own")
    producer_python: str | None = key("producer autoawq: python of the environment that has AutoAWQ (docs/quantize.md)", None)
    calibration: str | None = key("text, folder or dataset to calibrate on, instead of data's training part", None)
    data: DataSpec = key("documents of calibration (the training part) and evaluation (the held-out part)", factory=DataSpec)
    pairs: PairsSpec = key("encoder-decoders, instead of calibration and data: pairs of texts", factory=PairsSpec)
    calibration_rows: int = key("rows of calibration", 32, least=1)
    calibration_length: int | None = key("tokens per row; null means data.sequence_length", None, least=2)
    eval_rows: int = key("held-out rows on which full, rounded and quantized are compared; 0: none", 0, least=0)
    overwrite: bool = key("start afresh where output_dir holds a run with other settings", False)


@dataclass
class QuickstartSpec:
    """The whole job: pretrain, evaluate, extend, quantize, generate, report.

    Each section holds keys of its command, and may name a recipe to start from: {config: recipes/pretrain.yaml, ...}.
    """

    output: str = key("directory of the run", "runs/quickstart")
    pretrain: dict = key("keys of the pretrain command", factory=dict)
    evaluate: dict = key("keys of the evaluate command", factory=dict)
    extend: dict = key("keys of the extend command", factory=dict)
    quantize: dict = key("keys of the quantize command", factory=dict)
    generate: dict = key("keys of the generate command", factory=dict)
    overwrite: bool = key("start stages afresh whose settings changed", False)
