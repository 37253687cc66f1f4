"""What pyproject.toml cannot say: the packages that are found, plus one whose directory lies elsewhere."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["hf_variants*"]),
        "hf_variants.model_configs",
        "hf_variants.model_configs.tiny",
    ],
    package_dir={"hf_variants.model_configs": "model_configs", "hf_variants.model_configs.tiny": "model_configs/tiny"},
)
