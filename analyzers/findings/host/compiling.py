"""ESP409: torch.compile compiles in the recorded steps."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.launching import frame_of
from esprof.core import readable
from esprof.core.statistics import share_interval
from esprof.core.types import Rank, ns
from esprof.replay.engine.timeline import union_ns
from esprof.replay.whatif.host.compiling import compile_rows
from esprof.run.schema import Table

_SCENARIO = "compile=0"
_FRAME = "_compile.compile_inner (dynamo_timed)"
"""Range around the compilation of one frame; the backward pass is compiled apart from it."""

_RECOMPILED = re.compile(r"/[1-9]")
"""Matches the number of a region, `frame/compilation`, that is not the frame's first compilation."""


def compiling(case: Case) -> Iterator[Cause]:
    """Steps in which torch.compile compiles: for the first time, or again, because inputs differ."""
    steps = case.replayed.steps
    took = {rank: _compile_ns(case.run.events(rank), steps.steady) for rank in case.replayed.built.dfg.marks.ranks}
    total = np.sum([[*one.values()] for one in took.values()], axis=0)
    if not case.is_worth_reporting(max(sum(one.values()) for one in took.values()) / len(steps.steady)):
        return
    compiled_in = tuple(step for step, ns in zip(steps.steady, total.tolist(), strict=True) if ns)
    is_first_only = compiled_in == steps.all[:1]
    if not is_first_only and not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    longest = max(max(one.values()) for one in took.values())
    again = _recompiled(case, compiled_in)
    yield Cause(
        id="ESP409",
        title=f"torch.compile compiles in {len(compiled_in)} of {len(steps.steady)} steps, for up to "
        f"{readable.duration(longest)} of a step" + (f", {again} again" if again else ""),
        ranks=tuple(rank for rank, one in took.items() if any(one.values())),
        **({} if is_first_only else _price(case, len(compiled_in) / len(steps.steady))),
        confidence="medium",
        evidence={
            "compiling_per_step": by_rank(
                {rank: round(sum(one.values()) / len(steps.steady)) for rank, one in took.items()}, "ns"
            ),
            "in_steps": Evidence(readable.runs(compiled_in)),
            "frames_compiled": by_rank({rank: _frames(case.run.events(rank), steps.steady) for rank in took}),
            **case.launching.evidence(),
        },
        advice=_FIRST if is_first_only else _AGAIN,
    )


def _price(case: Case, share: float) -> dict[str, Any]:
    """The scenario. If its saving is not significant, because few steps compile: the same saving with the interval of
    `share`, the share of steps that compile."""
    (answer,) = case.pricer.answers([_SCENARIO])
    if answer.saving_us is None or (answer.saving_low_us or 0) > 0:
        return {"scenario": _SCENARIO}
    steps = len(case.replayed.steps.steady)
    low, _ = share_interval(round(share * steps), steps)
    saving_ns = float(ns(answer.saving_us))
    return {
        "measured": MeasuredPrice(
            saving_ns=saving_ns, margin_ns=saving_ns * (1 - low / share), step_ns=case.pricer.step_ns
        )
    }


def _compile_ns(events: Table, steps: tuple[int, ...]) -> dict[int, int]:
    """Step -> time in which any thread of the rank compiles, ns."""
    rows = compile_rows(events)
    start, step = events.ints("start_ns")[rows], events.ints("step")[rows]
    end = start + events.ints("dur_ns")[rows]
    return {one: union_ns(start[step == one], end[step == one]) for one in steps}


def _frames(events: Table, steps: tuple[int, ...]) -> int:
    rows = compile_rows(events)
    is_frame = events.matches("name", _FRAME.__eq__)[rows]
    return int((is_frame & np.isin(events.ints("step")[rows], steps)).sum())


def _recompiled(case: Case, steps: tuple[int, ...]) -> str:
    """The frames of which these steps run a compilation that is not their first, as `frames 0 and 2`; empty for none."""
    found: set[int] = set()
    ranks: tuple[Rank, ...] = case.replayed.built.dfg.marks.ranks
    for rank in ranks:
        events = case.run.events(rank)
        codes, names = events.codes("name")
        used = np.unique(codes[np.isin(events.ints("step"), steps)])
        for code in used[used >= 0].tolist():
            frame = frame_of(names[code])
            if frame is not None and _RECOMPILED.search(names[code]):
                found.add(frame)
    return readable.numbered("frame", sorted(found)) if found else ""


_AGAIN = (
    "Frames are compiled again if inputs do not fit what they were compiled for (guards): other sizes, types, Python values "
    "or modes. TORCH_LOGS=recompiles names each guard that failed. Pad or bucket sizes, or mark them as dynamic "
    "(`torch._dynamo.mark_dynamic`, `torch.compile(dynamic=True)`)."
)
_FIRST = (
    "That is the first compilation: later steps do not have this time unless something is compiled again. Record later "
    "steps (`--skip`, or `wait` and `warmup` of torch.profiler's schedule)."
)

_PAGES = (
    Page(
        "ESP409",
        "torch.compile compiles in the recorded steps",
        "Training steps wait until Dynamo, AOTAutograd and Inductor have compiled a frame of Python code. After the first "
        "steps that is a recompilation: an input does not fit any of the compilations that exist.",
        "`compiling per step` is the time inside Dynamo's ranges (names that end in `(dynamo_timed)`), `in steps` where "
        "they lie, and `frames compiled` their number. The title names frames that were compiled more than once, by the "
        "number in `Torch-Compiled Region: frame/compilation`. `compiled regions per step` counts calls of compiled code, "
        "and `graph breaks per step` those inside another: code after a graph break is a region of its own.",
        "`compile=0`: replay removes that time from all threads. If too few steps compile for a significant saving, its "
        "interval follows from their number. No saving if only the first recorded step compiles.",
        "Avoid recompilations: pad or bucket input sizes, or mark them as dynamic.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=compiling)
