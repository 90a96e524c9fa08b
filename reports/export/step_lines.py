"""Series over the steps as JSON lines, with the keys that Weights & Biases gives each row of a run's history."""

from typing import BinaryIO

import msgspec

from esprof.analyzers.tracks.step_series import StepSeries
from esprof.core.types import NS_PER_S


def write_step_lines(series: StepSeries, file: BinaryIO) -> None:
    """A line for each step: `_step`, `_timestamp` (s since the epoch, at its end), `_runtime` (s since the start of the
    first), and its figures."""
    for step in series.by_step():
        row = {
            "_step": step.step,
            "_timestamp": round(step.end_ns / NS_PER_S, 6),
            "_runtime": round((step.end_ns - series.start_ns) / NS_PER_S, 6),
            **step.figures,
        }
        file.write(msgspec.json.encode(row) + b"\n")
