"""How long functions of the job's own code take in the steps of the whole run, by the stacks that were sampled."""

import re

import numpy as np

from esprof.analyzers import job_steps
from esprof.analyzers.rule import Measured
from esprof.analyzers.step_groups import FEWEST_STEPS
from esprof.replay.sampled import Sampled
from esprof.replay.whatif.margins import mean_margin
from esprof.trace.run import Run

ENOUGH = 8
"""Samples of a function, on all ranks, from which on they tell how long it takes."""

OTHERS_WORK = 0.1
"""Most of a function's samples that may lie in work of the training itself that it calls, or that calls it: the rest is
its own."""

_TRAINING = re.compile(
    r"torch/nn/modules/module\.py\(\d+\): .*_call_impl|: _engine_run_backward$|torch/(optim|utils/data|distributed)/",
    re.MULTILINE,
)
"""Finds, below a function, what is no work of its own: modules, the backward pass, the optimizer, input, collectives."""

_INPUT = "torch/utils/data/"
"""Is in the lines above a function that makes batches."""

_CALLS_MODEL = ("_call_impl", ": _engine_run_backward")
"""Ends a line that calls the forward of a module, or a backward, or a hook."""


def function_time(run: Run, function: re.Pattern[str]) -> Measured | None:
    """What the functions that the pattern finds (as `file(line): function`) take in a mean step without profiler, with all
    that they call but garbage collections, the mean over ranks.

    None where too little was sampled, or where they are a part of the training: what would be left of it without them
    nobody can tell.
    """
    steps = job_steps.numbers(run, "plain")
    if len(steps) < FEWEST_STEPS:
        return None
    took, looks, others = np.zeros(len(steps)), 0, 0
    for rank in run.ranks:
        samples = run.samples(rank)
        codes, stacks = samples.codes("stack")
        found = np.array([_is_in(stack, function) for stack in stacks] + [0])[codes]
        at = np.searchsorted(steps, samples.ints("step"))
        inside = (found > 0) & np.isin(samples.ints("step"), steps)
        end, dur = samples.ints("at_ns")[inside], samples.ints("dur_ns")[inside]
        own_ns = dur - Sampled(run, rank).collecting_ns(end - dur, end)
        took += np.bincount(at[inside], own_ns, len(steps))[: len(steps)]
        looks, others = looks + int(inside.sum()), others + int((found[inside] == _PART).sum())
    if looks < ENOUGH or others > OTHERS_WORK * looks:
        return None
    took /= len(run.ranks)
    step_ns = float(job_steps.durations_ns(run, steps).mean())
    return Measured(saving_ns=float(took.mean()), margin_ns=mean_margin(took), step_ns=step_ns)


_OWN, _PART = 1, 2


def _is_in(stack: str, function: re.Pattern[str]) -> int:
    """0 where the function is not on the stack, `_OWN` where it is at work of its own, and `_PART` where it is a part of the
    training."""
    frames = stack.split("\n")
    at = next((number for number, frame in enumerate(frames) if function.search(frame)), None)
    if at is None:
        return 0
    above, below = frames[: at + 1], frames[at + 1 :]
    # A hook is called as forward and backward are, but has another name.
    called = max((number for number, frame in enumerate(above) if frame.endswith(_CALLS_MODEL)), default=at)
    is_model = any(frame.endswith(("forward", "backward")) for frame in above[called + 1 :])
    is_input = any(_INPUT in frame for frame in above)
    return _PART if is_model or is_input or _TRAINING.search("\n".join(below)) else _OWN
