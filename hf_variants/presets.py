"""Named configs of published models, shipped as plain JSON of `VariantsConfig` keys.

Notable here: a file holds only what differs from the defaults, so it reads as the list of a model's choices; overrides
are checked like any other config; `tiny/NAME` are small ones to train, one per toggle.
"""

import json
from pathlib import Path

from hf_variants.modeling.vocabulary import nearest

# An installed wheel carries the files inside the package; a source tree keeps them at its top level.
_FOLDERS = (Path(__file__).parent / "model_configs", Path(__file__).parent.parent / "model_configs")


def presets_folder():
    """Directory that holds the preset files. Raises ValueError where the installation lacks them."""
    for folder in _FOLDERS:
        if folder.is_dir():
            return folder
    raise ValueError(f"the preset files are missing from this installation: looked in {[str(path) for path in _FOLDERS]}")


def list_presets():
    """Names that `load_preset` knows, sorted."""
    folder = presets_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.json"))


def preset_keys(name):
    """The keys of a preset as its file holds them (dict). Raises ValueError for an unknown name, naming the closest one."""
    names = list_presets()
    if name not in names:
        shown = [known for known in names if known.startswith("tiny/") == str(name).startswith("tiny/")]
        more = "" if str(name).startswith("tiny/") else ", or small ones to train: 'tiny/mla', 'tiny/experts', ..."
        raise ValueError(f"preset {name!r} is unknown{nearest(name, names)}; choose from {shown}{more}")
    return json.loads((presets_folder() / f"{name}.json").read_text(encoding="utf-8"))


def load_preset(name, **overrides):
    """The config of a preset, of the class that its `model_type` names; keyword `overrides` replace single keys.

    Raises:
        ValueError: for an unknown name, naming the closest one, or for an override that the config refuses.
    """
    from hf_variants.modeling.configuration_variants import VariantsConfig
    from hf_variants.modeling.configuration_variants_seq2seq import VariantsSeq2SeqConfig

    kind = preset_keys(name).get("model_type", VariantsConfig.model_type)
    classes = {config.model_type: config for config in (VariantsConfig, VariantsSeq2SeqConfig)}
    return classes[kind].from_preset(name, **overrides)
