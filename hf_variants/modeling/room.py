"""The files of this folder travel with every checkpoint, so that it loads with `trust_remote_code=True` where the package is
not installed. Whoever saves copies the whole folder: which head will be loaded from it is not known when it is saved.
"""

from pathlib import Path


def copy_room(source_file, directory):
    """Copy the Python files beside `source_file` into `directory` (nothing where they already stand there)."""
    source, target = Path(source_file).resolve().parent, Path(directory).resolve()
    if source == target:
        return
    for path in sorted(source.glob("*.py")):
        if path.name != "__init__.py":
            (target / path.name).write_bytes(path.read_bytes())


def _closure():
    """Never called. transformers reads import statements to learn which files to fetch with a config; a config that is saved
    again must bring the models' files along, and one closure gives config and models the same copy of every class.
    """
    from .modeling_variants import VariantsModel  # noqa: F401
    from .modeling_variants_seq2seq import VariantsSeq2SeqModel  # noqa: F401
    from .modeling_variants_vision import VariantsVisionModel  # noqa: F401
    from .processing_variants import VariantsProcessor  # noqa: F401
    from .vision_tower import VisionTower  # noqa: F401
