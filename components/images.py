"""The image of every task and the machine it asks for.

Committed YAML names the sentinel; `compile.py --image REF@sha256:...` and `tuneline submit --image` replace only that.
"""

from __future__ import annotations

#: `.invalid` never resolves (RFC 2606): a pipeline with this image cannot start by mistake.
SENTINEL = "tuneline.invalid/steps:sentinel"

#: CPUs and memory of each task; the rest wait most of the time and take SMALL.
SMALL = ("2", "8G")
SIZES = {
    "stage-model": ("8", "32G"),
    "stage-dataset": ("8", "32G"),
    "stage-code": ("8", "32G"),
    "convert": ("16", "64G"),
}
