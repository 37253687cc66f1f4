"""A scaling study of seconds: two tiny sizes on a tiny text."""

from hf_variants.studies import ScalingStudySpec
from hf_variants.training import build_spec
from tests.ablation.tiny import mapping as ablation_mapping


def mapping(root, **keys):
    """The recipe as a nested mapping: 4 rows of 32 tokens per step."""
    base = ablation_mapping(root)["base"]
    trainer = {
        "per_device_train_batch_size": 4,
        "eval_strategy": "no",
        "warmup_steps": 2,
        "save_steps": 2,
        "disable_tqdm": True,
    }
    base["trainer"] = {**trainer, "learning_rate": 1e-2}
    sizes = {"small": {"model.intermediate_size": 24}, "large": {"trainer.learning_rate": 5e-3}}
    given = {"sizes": sizes, "token_counts": [640, 1280], "decay_share": 0.3, "bootstrap": 3}
    return {"output_dir": str(root / "out"), "base": base, **given, **keys}


def spec_of(root, **keys):
    return build_spec(ScalingStudySpec, mapping(root, **keys))
