"""A job's own account of its steps, as of now."""

from pathlib import Path

from esprof import Run, load


def fresh(run: Path, *, since: int | None = None, wait_s: float = 60.0) -> Run:
    """What the job at `run` has written of its steps."""
    return load(run)
