"""Starts NeMo RL in one attempt's job. This file also runs alone, in NeMo RL's image, which has no Tuneline.

    python tuneline_nemo_rl.py HOME ATTEMPT RESUME_FROM SCRIPT ARGUMENT...

NeMo RL resumes from the highest step below its checkpoint folder and takes no path. An attempt's folder is new, so RESUME_FROM's
files are linked into it: a folder of links, because NeMo RL removes old checkpoints and must not reach another attempt's through it.
"""

from __future__ import annotations

import os
import sys


def link(resume_from: str, attempt: str) -> str:
    """Make the checkpoint `resume_from` one of this attempt; the new folder's path."""
    folder = os.path.join(attempt, os.path.basename(resume_from))
    building = os.path.join(attempt, f"tmp_link_{os.path.basename(resume_from)}")
    os.makedirs(building, exist_ok=True)
    for name in os.listdir(resume_from):
        target = os.path.join(building, name)
        if not os.path.islink(target):
            os.symlink(os.path.join(resume_from, name), target)
    if not os.path.isdir(folder):
        os.rename(building, folder)
    return folder


def main(arguments: list[str]) -> None:
    home, attempt, resume_from, *command = arguments
    if resume_from:
        print(f"resuming from {resume_from} through {link(resume_from, attempt)}", flush=True)
    os.chdir(home)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
