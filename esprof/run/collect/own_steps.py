"""Durations and phases of the steps of a recorded job, per rank."""

from collections.abc import Iterator

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.run.kineto.steps.trace_steps import OPTIMIZER
from esprof.run.probes import VariedStep
from esprof.run.run import Run
from esprof.run.schema import Table

_BACKWARD = "autograd::engine::evaluate_function"


def own_steps(run: Run, setting: str = "") -> Iterator[VariedStep]:
    """Yield the steps of each rank of a job that ran with `setting`; ranks without an unprofiled step are skipped."""
    for rank in run.ranks:
        steps, meta = run.steps(rank), run.rank(rank)
        phase_names, took = steps.texts("phase"), steps.ints("dur_ns").tolist()
        plain = tuple(took[row] for row in range(1, len(took)) if phase_names[row] == "plain")
        if plain:
            yield VariedStep(
                rank=rank,
                device=meta.device,
                setting=setting,
                samples_ns=plain,
                parts_ns=_mean_phases(run, rank),
                peak_memory=meta.peak_memory,
            )


def _mean_phases(run: Run, rank: Rank) -> dict[str, Ns]:
    """Return the mean phases of the profiled steps. The backward pass extends from the first to the last autograd node of a
    step; the forward pass lies between the batch and the backward pass."""
    events, waits = run.events(rank), _loader_waits(run, rank)
    starts, ends = events.ints("start_ns"), events.ints("start_ns") + events.ints("dur_ns")
    of_name = {
        "backward": events.matches("name", lambda name: name.startswith(_BACKWARD)),
        "optimizer": events.matches("name", lambda name: name.startswith(OPTIMIZER)),
    }
    marks = events.where(events.is_kind("step"))
    found = [
        _phases_of_step(start, start + took, starts, ends, of_name, waits)
        for start, took in zip(marks.ints("start_ns").tolist(), marks.ints("dur_ns").tolist(), strict=True)
    ]
    whole = [one for one in found if one]
    return {phase: round(np.mean([one[phase] for one in whole])) for phase in whole[0]} if whole else {}


def _phases_of_step(
    begin: Ns, end: Ns, starts: np.ndarray, ends: np.ndarray, of_name: dict[str, np.ndarray], waits: np.ndarray
) -> dict[str, Ns]:
    """Return the phases of one step; empty without a backward pass or an optimizer step."""
    # A step boundary lies within the optimizer's call, whose time is divided between the two steps.
    begins, stops = np.clip(starts, begin, end), np.clip(ends, begin, end)
    backward, optimizer = (np.flatnonzero((stops > begins) & of_name[phase]) for phase in ("backward", "optimizer"))
    if not len(backward) or not len(optimizer):
        return {}
    data = waits[(waits[:, 0] >= begin) & (waits[:, 1] <= end)]
    began, ended = int(begins[backward].min()), int(stops[backward].max())
    before = [int(stop) for _, stop in data.tolist() if stop <= began]
    phases = {
        "data": int((data[:, 1] - data[:, 0]).sum()),
        "forward": began - max(before, default=begin),
        "backward": ended - began,
        "optimizer": int((stops[optimizer] - begins[optimizer]).sum()),
    }
    return phases | {"rest": max(0, end - begin - sum(phases.values()))}


def _loader_waits(run: Run, rank: Rank) -> np.ndarray:
    """Return (start, end) of each call of a loader's `next`, ns, int64[N, 2]."""
    stages: Table = run.stages(rank)
    calls = stages.where(stages.is_kind("next"))
    return np.stack([calls.ints("start_ns"), calls.ints("end_ns")], axis=1).reshape(-1, 2)
