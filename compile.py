"""Join pipelines and recipes into compiled/*.yaml.

python compile.py                    write them
python compile.py --check            fail, naming file and line, where the committed ones differ
python compile.py --image REF        name a user's own image in place of the sentinel (into --out)
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
from pathlib import Path

import yaml

from components.images import SENTINEL
from tuneline.config.recipes import load_recipe
from tuneline.config.spec import RunSpec
from tuneline.core.errors import TunelineError

ROOT = Path(__file__).resolve().parent
_IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
_IMAGE_LINE = re.compile(r"(?m)^(\s+image: ).*$")
# kfp keeps a shell as PID 1, which does not pass SIGTERM on; and it does not quote the interpreter, whose path may hold spaces.
_START = "_KFP_RUNTIME=true python3 -m"
_EXEC = '_KFP_RUNTIME=true exec "python3" -m'


def build(recipe: str) -> str:
    """The compiled pipeline of one recipe, as text.

    Raises:
        SpecError: If the recipe's values break a rule.
    """
    from kfp import compiler

    from pipelines.grpo import grpo

    parameters = load_recipe(ROOT / "recipes" / f"{recipe}.yaml")
    RunSpec.build(parameters)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(grpo, str(package), pipeline_name=f"tuneline-grpo-{recipe}", pipeline_parameters=parameters)
        document = yaml.safe_load(package.read_text())
    for executor in document["deploymentSpec"]["executors"].values():
        command = executor["container"]["command"]
        assert sum(part.count(_START) for part in command) == 1, "kfp's start command has changed; see compile.py"
        executor["container"]["command"] = [part.replace(_START, _EXEC) for part in command]
    head = f"# Made by compile.py from pipelines/grpo.py and recipes/{recipe}.yaml. Do not edit.\n"
    return head + yaml.safe_dump(document, sort_keys=True, width=140)


def drift(committed: Path, text: str) -> str:
    """'' where the file holds `text`, modulo its image; else `file:line: difference`."""
    if not committed.exists():
        return f"{committed}:1: missing; run python compile.py"
    before, after = (_IMAGE_LINE.sub(r"\1", document).splitlines() for document in (committed.read_text(), text))
    if before == after:
        return ""
    for tag, first, _, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            old = before[first].strip() if first < len(before) else "(end of file)"
            new = after[start].strip() if start < end else "(nothing)"
            return f"{committed}:{first + 1}: is {old!r}, compiles to {new!r}; run python compile.py"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where compiled/ is not what the sources give")
    parser.add_argument("--image", default="", metavar="REF", help="your image, by digest: registry/name@sha256:...")
    parser.add_argument("--out", type=Path, default=ROOT / "compiled", help="where to write (default: compiled/)")
    options = parser.parse_args()
    if options.image and not _IMAGE.fullmatch(options.image):
        parser.error(f"--image {options.image!r} is no image reference: want registry/name@sha256:<64 hex>")
    if options.image and "@sha256:" not in options.image:
        print(f"warning: {options.image} is a tag; a tag that moves serves stale cache entries. Prefer a digest.", file=sys.stderr)
    recipes = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
    faults = []
    for recipe in recipes:
        text = build(recipe)
        target = options.out / f"{recipe}.yaml"
        if options.check:
            faults.append(drift(target, text))
            continue
        if options.image:
            text = text.replace(SENTINEL, options.image)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
        print(f"compiled {target}")
    found = [fault for fault in faults if fault]
    print(
        "\n".join(found) if found else f"{len(recipes)} compiled pipeline(s) up to date" if options.check else "",
        end="\n" if options.check else "",
    )
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TunelineError as error:
        sys.exit(str(error))
