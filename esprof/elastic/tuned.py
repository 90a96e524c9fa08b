"""A job that `esprof tune` has started: it gets its Run, and the place where its plans come from, by a variable."""

import os
from pathlib import Path

from esprof.elastic.plans.source import PlanSource

VARIABLE = "ESPROF_TUNE"
"""The Run directory."""


def or_tuned(
    telemetry: str | Path | None, plan: str | Path | PlanSource | None
) -> tuple[str | Path | None, str | Path | PlanSource | None]:
    """The `telemetry` and `plan` of a trainer; those of `esprof tune` where it has started the job and they are None."""
    run = os.environ.get(VARIABLE)
    if not run:
        return telemetry, plan
    return telemetry or run, plan or Path(run) / "plan.json"
