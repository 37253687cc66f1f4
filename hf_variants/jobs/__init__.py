"""Jobs: what each command of the command line does, as a dataclass of keys and a function.

    pretrain(TrainingSpec)   extend(ExtendSpec)   quantize(QuantizeSpec)   evaluate(EvaluateSpec)
    generate(GenerateSpec)   finetune(FinetuneSpec)   seq2seq(Seq2SeqSpec)   ablate(AblateSpec)
    scaling_study(ScalingStudySpec)   extrapolate(ExtrapolateSpec)
    vision_language(VisionLanguageSpec)
    quickstart(QuickstartSpec) chains them and writes a report

Notable here: a job only connects rooms (training, context, quantize, evaluation, report); YAML keys, flags and Python
keywords are the fields of its dataclass.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "TrainingSpec": "specs",
    "EvaluateSpec": "specs",
    "GenerateSpec": "specs",
    "AblateSpec": "specs",
    "ExtrapolateSpec": "specs",
    "ScalingStudySpec": "specs",
    "ExtendSpec": "specs",
    "FinetuneSpec": "specs",
    "QuantizeSpec": "specs",
    "QuickstartSpec": "specs",
    "VisionLanguageSpec": "specs",
    "Seq2SeqSpec": "specs",
    "pretrain": "pretraining",
    "evaluate": "evaluation",
    "generate": "generation",
    "extend": "extension",
    "finetune": "finetuning",
    "seq2seq": "sequences",
    "ablate": "ablation",
    "extrapolate": "extrapolation",
    "scaling_study": "scaling",
    "quantize": "quantization",
    "quickstart": "whole_job",
    "vision_language": "vision",
}

# recipe: the dataclass of its keys; recipes/NAME.py and a command run the function of that name
RECIPES = {
    "pretrain": "TrainingSpec",
    "extend": "ExtendSpec",
    "finetune": "FinetuneSpec",
    "seq2seq": "Seq2SeqSpec",
    "vision_language": "VisionLanguageSpec",
    "ablate": "AblateSpec",
    "extrapolate": "ExtrapolateSpec",
    "scaling_study": "ScalingStudySpec",
    "quantize": "QuantizeSpec",
    "evaluate": "EvaluateSpec",
    "generate": "GenerateSpec",
    "quickstart": "QuickstartSpec",
}
# recipes that train nothing over several processes, and refuse them
IN_ONE_PROCESS = {"quantize", "evaluate", "generate", "quickstart"}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
