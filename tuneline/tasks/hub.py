"""The Hugging Face hub: one commit of one repository, whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuneline.core.errors import StagingError

MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "LICENSE*", "README.md"]
DATASET_FILES = ["*.parquet", "*.jsonl", "*.json", "LICENSE*", "README.md"]


def resolve_commit(repository: str, revision: str, *, kind: str) -> str:
    """The 40-hex commit that a branch, tag or commit of a repository names now.

    Args:
        kind: model | dataset.

    Raises:
        StagingError: If the hub does not answer, or does not show the repository to this caller.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        commit = HfApi().repo_info(repository, revision=revision or None, repo_type=kind).sha
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise _refused(repository, revision, kind, error) from error
    if not commit:
        raise _refused(repository, revision, kind, ValueError("no commit named"))
    return str(commit)


def download(repository: str, commit: str, *, kind: str) -> Callable[[Path], None]:
    """A `fill` for staging: the repository's files at `commit`."""

    def fill(folder: Path) -> None:
        import shutil

        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        patterns = MODEL_FILES if kind == "model" else DATASET_FILES
        try:
            snapshot_download(repository, repo_type=kind, revision=commit, local_dir=folder, allow_patterns=patterns)
        except (HfHubHTTPError, OSError) as error:
            raise _refused(repository, commit, kind, error) from error
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    return fill


def _refused(repository: str, revision: str, kind: str, error: Exception) -> StagingError:
    return StagingError(
        f"the Hugging Face hub does not give the {kind} {repository}",
        asked=f"revision {revision or 'main'}",
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300],
        next_move="check the id and the network; for a gated repository set HF_TOKEN to a token with access; or give a local folder",
    )
