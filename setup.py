"""Package metadata. Supported versions are also checked when a run starts (`megatron_rl.config.versions`)."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="megatron-rl",
    version="0.1.0",
    description="Megatron-Core training backend for reinforcement-learning post-training of language models",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.12",
    packages=find_packages(include=["megatron_rl", "megatron_rl.*"]),
    install_requires=[
        "torch>=2.8",
        "megatron-core>=0.19.2,<0.20",
        "jinja2",  # chat templates
        "numpy",
        "psutil",  # Megatron-Core's checkpoint writer imports it without declaring it
        "pydantic>=2.10",  # typed configuration that reports all errors together
        "pyyaml",  # run files
        "rich",  # progress bar and tables
        "sentencepiece",
        "tensorboard",
    ],
    extras_require={
        "gpu": ["transformer-engine[pytorch]"],
        "parquet": ["pyarrow"],
        "tests": ["pytest", "pyarrow"],
        "docs": ["mkdocs"],
    },
)
