"""What replay says of a recording, and what the recording holds, as figures."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from benchmarks.gpu.kit import Kit, rounded
from esprof import Run
from esprof.analyzers import diagnose
from esprof.replay.replayed import Replayed, answer
from esprof.run.schema import Table

MAX_ERROR_PCT = 100.0
"""As of `esprof replay`: how far replay is off is to be seen, not refused."""


def show_replay(kit: Kit, run: Run, **context: Any) -> None:
    """Print how closely replay reproduces a recording, and how much of it is explained; and what was found in it."""
    replayed = Replayed.of(run, max_error_pct=MAX_ERROR_PCT)
    result = answer(replayed)
    errors = [abs(step.error_pct) for step in result.steps]
    seen = {"left_out": len(result.left_out), "warnings": [warning.code for warning in result.warnings]}
    coverage = {key: value for key, value in msgspec.to_builtins(result.coverage).items() if value}
    path = {name: round(took) for name, took in result.critical_path.classes.items() if took}
    kit.show("self_replay_error", errors, "%", **context, **seen, coverage=coverage, critical_path_us=path)
    kit.show("strict_replay_error", abs(result.strict_error_pct), "%", **context)
    if result.known_error_pct is not None:
        kit.show("held_out_error", result.known_error_pct, "%", **context)
    kit.show("explained", result.explained_pct, "% of the path", **context)
    kit.show("step_ms", [step.measured_us / 1e3 for step in result.steps], "ms", **context)
    if result.unprofiled_step_us is not None:
        kit.show("unprofiled_step_ms", result.unprofiled_step_us / 1e3, "ms", **context)
    found = [(one.id, list(one.ranks), rounded(one.saving_pct)) for one in diagnose(replayed).findings]
    kit.show("findings", len(found), "findings", **context, found=found)


def in_window(run: Run, rank: int = 0) -> Table:
    """The events of a rank's recorded steps."""
    events = run.events(rank)
    return events.where(events.ints("step") >= 0)


def counts(events: Table, column: str, *kinds: str) -> dict[str, int]:
    """How many events of these kinds there are by the text in `column`."""
    return dict(Counter(text for text in events.where(events.is_kind(*kinds)).texts(column) if text).most_common())


def steps_in(events: Table) -> int:
    return len(np.unique(events.ints("step")))


def streams(events: Table) -> int:
    """GPU streams with work on them."""
    return len(
        set(events.where(events.is_kind("kernel", "memcpy", "memset", "collective")).ints("stream").tolist()) - {-1}
    )
