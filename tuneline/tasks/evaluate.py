"""The gate: the engine's own validation at the first and the last step."""

from __future__ import annotations

import json
from pathlib import Path

from tuneline.core import log
from tuneline.core.errors import GateError
from tuneline.core.files import write_atomic
from tuneline.engines import metrics as series
from tuneline.tasks.context import Artifact, running_spec

logger = log.get_logger("tasks.evaluate")


def run(spec_json: str, job_name: str, checkpoint: Artifact, metrics: Artifact, curve: Artifact) -> bool:
    """Compare scores with the run's limits; draw the reward curve. Returns whether the model passed.

    Raises:
        GateError: If the engine did not record a validation score at the first and the last step.
    """
    with running_spec("evaluate", spec_json, job_name) as (task, spec):
        source = task.take("checkpoint", checkpoint)
        rows = series.read_series(source.folder.parent.parent)
        scores = {int(row["step"]): float(row["eval_score"]) for row in rows if "eval_score" in row}
        last = int(source.metadata["lineage_step"])
        if 0 not in scores or last not in scores:
            raise GateError(
                "there is no validation score to judge the model by",
                asked=f"eval_score at steps 0 and {last}",
                found=f"eval_score at steps {sorted(scores) or 'none'}",
                next_move="look at the training log; a training that was cut off must be run to its end",
            )
        base, trained = scores[0], scores[last]
        passed = trained >= spec.output_min_score and trained - base >= spec.output_min_gain
        folder = Path(task.store.run_metrics(task.run_id))
        html = series.curve_html(rows, f"Reward of {spec.output_model_name}, run {task.run_id}")
        write_atomic(folder / "curve.html", html.encode())
        series.curve_png(rows, folder / "curve.png")
        write_atomic(folder / "series.jsonl", "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode())
        write_atomic(Path(curve.path), html.encode())
        summary = {**series.summary(rows), "base_score": base, "trained_score": trained, "passed": passed}
        write_atomic(Path(metrics.path), json.dumps(summary, sort_keys=True).encode())
        metrics.metadata.update({key: value for key, value in summary.items() if isinstance(value, int | float)})
        task.notes.update(
            base_score=f"{base:.3f}", trained_score=f"{trained:.3f}", passed=str(passed).lower(), curve=str(folder / "curve.html")
        )
        if not passed:
            logger.warning(
                "not registered: validation %.3f -> %.3f; wanted at least %.3f and a gain of at least %.3f",
                base, trained, spec.output_min_score, spec.output_min_gain,
            )  # fmt: skip
        return passed
