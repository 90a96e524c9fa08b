"""Whether replay by skeletons (`esprof.replay.skeleton`) is exact: ranks built and contracted one by one, against the whole
graph.

    python -m benchmarks.skeletons [RUN…] [--programs 300] [--seed 0] [--jobs 2]

For each RUN, and each program of `benchmarks.known`, the ends of all nodes, the steps with and without residuals and as
predicted from some of them, the progress of the GPUs, the critical path by class and by rank, the slow ranks and the delay
of each, and the price of each of `SCENARIOS` must be the same. Prints a
JSON line for each job that differs or has no graph, and one with the counts.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import esprof
from benchmarks.known.jobs import SHAPES, job
from benchmarks.known.kineto import write
from benchmarks.known.machine import run
from esprof.core.errors import InputError
from esprof.replay.building.build import build_counted
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Timeline, class_totals, critical_path, rank_totals, replay, strict
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.job import CalibratedJob
from esprof.replay.skeleton.joined import CyclesAcrossRanks, JobSkeleton
from esprof.replay.skeleton.large import LargeReplay
from esprof.replay.skeleton.ranks import RanksAlone
from esprof.replay.steps import steps_of
from esprof.replay.whatif.error.held_out import first_arrivals, fitted, places
from esprof.replay.whatif.pricing import Price
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run

SCENARIOS = (
    "gpu=2x", "rank1.gpu=0.5x", "cpu=2x", "rank0.cpu=0.5x", "host=2x", "rank0.host=0.5x", "kernel[gemm|mm]=2x",
    "network=2x", "network=0.5x", "network=100Gbit", "collective[reduce]=2x", "communication=0", "overlap=perfect",
    "data=0", "data[ready]=0", "rank0.data=0", "sync=0", "rank1.sync=0", "allocator=0", "barriers=0", "launches=graph",
    "python[.]=0", "recompute=0", "compile=0", "padding=0", "repeated_calls=0", "unused_gradients=0",
    "small_operations=0",
    "double_precision=2x", "loader.workers=4", "storage=2x",
    "straggler=fix", "straggler[work]=fix", "straggler[compute]=fix", "straggler[host_gap]=fix", "straggler[cpu]=fix",
    "straggler[allocator]=fix", "straggler[data]=fix", "balance=fix", "balance[stages]=fix", "balance[microbatches]=fix",
    "gpu=2x,network=2x", "cpu=2x,network=0.5x,sync=0", "data=0,sync=0", "straggler=fix,communication=0",
    "straggler[work]=fix,data=0,overlap=perfect", "host=2x,rank1.data=0,allocator=0", "network=2x,overlap=perfect",
)  # fmt: skip
"""Each term that is priced rank by rank, alone and with others."""


@dataclass(frozen=True)
class Compared:
    """One job by its skeletons, against its whole graph."""

    name: str
    nodes: int = 0
    skeleton_nodes: int = 0
    differs: tuple[str, ...] = ()
    """What is not the same."""
    declined: str = ""
    """Why there is no graph, or no skeleton."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        seeds = range(asked.seed, asked.seed + asked.programs)
        found = [*pool.map(compared, asked.runs), *pool.map(compared_program, seeds)]
    for one in found:
        if one.differs or one.declined:
            print(json.dumps({"job": one.name, "differs": one.differs, "declined": one.declined}))
    compared_ones = [one for one in found if not one.declined]
    counts = {
        "jobs": len(found),
        "declined": len(found) - len(compared_ones),
        "nodes": sum(one.nodes for one in compared_ones),
        "skeleton_nodes": sum(one.skeleton_nodes for one in compared_ones),
    }
    exact = sum(not one.differs for one in compared_ones)
    print(json.dumps({"name": "skeletons_exact", "value": exact, "unit": "jobs", "context": counts}))
    return 0 if exact == len(compared_ones) else 1


def compared_program(seed: int) -> Compared:
    """The simulated job of this seed, of a class that the seed gives."""
    shapes = [name for name, one in SHAPES.items() if one.is_common]
    made = job(shapes[seed % len(shapes)], seed)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), made.program, run(made.program), made.groups, made.recording)
        return compared(Path(folder), f"{made.shape} {seed}")


def compared(source: Path, name: str = "") -> Compared:
    """A run by its skeletons, against its whole graph."""
    name = name or str(source)
    try:
        steps = steps_of(esprof.load(source))
        whole = build_counted(steps.run, steps).dfg
        alone = CalibratedJob.of(RanksAlone.of(steps))
    except (InputError, CyclesAcrossRanks) as reason:
        return Compared(name, declined=repr(reason))
    variants = alone.skeletons(_variants)
    of_whole = (whole, strict(whole), fitted(whole, steps.steady_at, places(*first_arrivals(whole))))
    differs = [*_differences(alone, variants[0], replay(whole))]
    for what, mine, theirs in zip(("", " without residuals", " held out"), variants, of_whole, strict=True):
        if not np.array_equal(replay(mine.dfg).step_ns(), replay(theirs).step_ns()):
            differs.append(f"steps{what}")
    differs += different_answers(steps.run)
    return Compared(name, whole.nodes, variants[0].dfg.nodes, tuple(differs))


def different_answers(run: Run) -> Iterator[str]:
    """What has another price, or none, rank by rank than on the whole graph."""
    whole, by_rank = (
        Replayed.of(run, max_error_pct=np.inf).pricer,
        LargeReplay.by_rank(run, max_error_pct=np.inf).pricer,
    )
    if not np.array_equal(whole.blame.late_ns, by_rank.blame.late_ns):
        yield "delay of each rank"
    if whole.blame.slow_ranks != by_rank.blame.slow_ranks:
        yield "slow ranks"
    prices = whole.prices(SCENARIOS), by_rank.prices(SCENARIOS)
    for spec, one, other in zip(SCENARIOS, *prices, strict=True):
        if not _is_same_price(one, other):
            yield spec


def _is_same_price(one: Price | Declined, other: Price | Declined) -> bool:
    if isinstance(one, Declined) or isinstance(other, Declined):
        return isinstance(one, Declined) and isinstance(other, Declined)
    return (
        np.array_equal(one.step_ns, other.step_ns)
        and np.array_equal(one.progress_ns, other.progress_ns)
        and (one.margin_ns, one.only_saves, {*one.notes}) == (other.margin_ns, other.only_saves, {*other.notes})
    )


def _variants(rank: CalibratedRank) -> tuple[Dfg, Dfg, Dfg]:
    dfg = rank.graph()
    return dfg, strict(dfg), rank.fitted(dfg)


def _differences(alone: CalibratedJob, recorded: JobSkeleton, whole: Timeline) -> Iterator[str]:
    if (alone.nodes, alone.edges) != (whole.dfg.nodes, whole.dfg.edges):
        yield "size"
    if not np.array_equal(replay(recorded.dfg).gpu_progress_ns(), whole.gpu_progress_ns()):
        yield "progress of GPUs"
    for rank in map(alone.rank, whole.dfg.marks.ranks):
        if not np.array_equal(*(_ends(one, rank.rank) for one in (whole, rank.timeline(rank.graph())))):
            yield f"ends of rank {rank.rank}"
    last = len(whole.dfg.marks.steps) - 1
    paths = alone.path(recorded, 0, last)[0], critical_path(whole, 0, last)
    if len({str((class_totals(path), sorted(rank_totals(path).items()))) for path in paths}) > 1:
        yield "critical path"


def _ends(timeline: Timeline, rank: int) -> np.ndarray:
    """Lane, recorded start and end of each node of a rank, lane by lane."""
    dfg = timeline.dfg
    nodes = dfg.nodes_of(rank)
    lane = dfg.lane[nodes] - dfg.lane[nodes].min()
    rows = np.stack([lane, dfg.recorded_ns[nodes], dfg.dur_ns[nodes], timeline.end_ns[nodes]])
    return rows[:, np.lexsort(rows[::-1])]


if __name__ == "__main__":
    sys.exit(main())
