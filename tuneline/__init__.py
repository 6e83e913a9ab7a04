"""Tuneline: GRPO post-training on GKE as compiled Kubeflow pipelines, with lineage that verifies."""

__version__ = "0.1.0"
