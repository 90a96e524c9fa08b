"""ESP404: training threads that are ready to run but wait for a CPU."""

from collections.abc import Iterator, Mapping

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import CPU_CONTENTION
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.ranks.arrivals import arrivals
from esprof.replay.ranks.stalls import starved_ns
from esprof.replay.whatif.host.host_cpus import cpus_of
from esprof.replay.whatif.term import scope
from esprof.run.run import Run
from esprof.run.schema import Table

MIN_SHARE_OF_STEP = 0.03
"""Least share of its steps for which a rank must wait for a CPU to be listed: the kernel itself causes short waits."""

MIN_SHARE_OF_WORST_RANK = 0.5
"""Least wait for a CPU, as a share of the worst rank's, for which a rank is listed too: ranks with shorter waits would wait
for the worst rank anyway."""

MIN_CERTAIN_SHARE_OF_STEP = 0.1
"""Least share of a step, beyond the scatter of steps, for which a rank must wait for a CPU for the saving to be certain.
Where two ranks run on two CPUs, waits of 5 to 9 % of a step are usual."""


def cpu_contention(case: Case) -> Iterator[Cause]:
    """Ranks whose training thread waits for a CPU."""
    waited = waits_ns(case)
    if not waited:
        yield from _starved(case)
    ranks = waiting_ranks(case, waited)
    if not ranks:
        return
    scenario, worst_ns = without_waits(case, ranks), max(waited.values())
    if not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    throttled = {rank: _throttled_ns(_measured_steps(case, rank)) for rank in ranks}
    by_quota = max(throttled.values()) > worst_ns / 2
    takes = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(worst_ns)} a step"
    because = "the CPU quota is used up" if by_quota else "other threads use the CPUs"
    yield Cause(
        id=CPU_CONTENTION,
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {takes} for a CPU: {because}",
        ranks=ranks,
        scenario=scenario,
        certain_share=certain_share(case, ranks),
        confidence="high",
        evidence={"waiting_for_cpu": by_rank({rank: round(waited[rank]) for rank in ranks}, "ns")}
        | ({"throttled_by_quota": by_rank(throttled, "ns")} if by_quota else {})
        | _demand(case.run, ranks[0]),
        advice=_QUOTA_ADVICE if by_quota else _LOAD_ADVICE,
    )


def waits_ns(case: Case) -> dict[Rank, float]:
    """How long the training thread of each rank waits for a CPU in a mean step, ns, where that was measured."""
    tables = {rank: _measured_steps(case, rank) for rank in case.ranks}
    return {rank: float(table.ints("ready_ns").mean()) for rank, table in tables.items() if len(table)}


def waiting_ranks(case: Case, waited: Mapping[Rank, float]) -> tuple[Rank, ...]:
    """The ranks that wait for a CPU as long as to be listed; `waited` are the `waits_ns`."""
    worst_ns = max(waited.values(), default=0.0)
    if worst_ns < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return ()
    return tuple(rank for rank, ns in sorted(waited.items()) if ns >= MIN_SHARE_OF_WORST_RANK * worst_ns)


def certain_share(case: Case, ranks: tuple[Rank, ...]) -> float:
    """Share of the saving of their waits for a CPU that is certain; 0 if most steps were not measured."""
    waited = [_measured_steps(case, rank).ints("ready_ns") for rank in ranks]
    known = [ready for ready in waited if len(ready) >= max(2, len(case.replayed.steps.steady) / 2)]
    least_ns = max((float(ready.mean()) - mean_margin(ready) for ready in known), default=0.0)
    return CERTAIN_SHARE if least_ns >= MIN_CERTAIN_SHARE_OF_STEP * case.pricer.step_ns else 0.0


def without_waits(case: Case, ranks: tuple[Rank, ...]) -> str:
    """The what-if in which these ranks never wait for a CPU."""
    return "runqueue=0" if len(ranks) == len(case.ranks) else f"{scope(ranks)}.runqueue=0"


def _starved(case: Case) -> Iterator[Cause]:
    """Ranks without scheduler statistics whose stalls indicate that they lack CPUs."""
    stalls, blame = starved_ns(case.blame), case.blame
    if stalls is None or not case.is_worth_reporting(case.pricer.saving_ns("runqueue=0")):
        return
    dfg, steps = blame.dfg, blame.steps
    stalled = np.flatnonzero((stalls > 0) & np.isin(dfg.step, steps))
    lost = {
        rank: round(float(stalls[stalled[dfg.rank[stalled] == rank]].sum()) / len(steps)) for rank in dfg.marks.ranks
    }
    late = dict(zip(dfg.marks.ranks, arrivals(dfg, steps).late_ns() / len(steps), strict=True))
    latest = tuple(rank for rank, ns in late.items() if ns >= MIN_SHARE_OF_WORST_RANK * max(late.values()) > 0)
    worst = f"; {readable.ranks(latest)} {readable.verb('delay', latest)} the others most" if latest else ""
    yield Cause(
        id=CPU_CONTENTION,
        title=f"All ranks stall for up to {readable.duration(max(lost.values()))} a step, each at different "
        f"operations, which indicates a lack of CPUs{worst}",
        ranks=tuple(lost),
        scenario="runqueue=0",
        confidence="medium",
        evidence={
            "stalled": by_rank(lost, "ns"),
            "stalls_per_step_and_rank": Evidence(round(len(stalled) / len(steps) / len(lost), 1)),
            "longest_stall": Evidence(int(stalls[stalled].max()), "ns"),
            "late_per_step": by_rank({rank: round(ns) for rank, ns in late.items()}, "ns"),
        },
        advice=_LOAD_ADVICE,
    )


def _measured_steps(case: Case, rank: Rank) -> Table:
    """Rows of the steady-state steps in which the training thread's wait for a CPU was measured."""
    table = case.job.steps.rows(rank, np.array(case.replayed.steps.steady))
    return table.where(table.ints("ready_ns") >= 0)


def _throttled_ns(table: Table) -> int:
    """Time for which the rank's control groups were throttled in a mean step, ns, summed over CPUs."""
    return round(float(np.maximum(table.ints("throttled_ns"), 0).mean()))


def _demand(run: Run, rank: Rank) -> dict[str, Evidence]:
    """CPUs of the host of `rank`, and operator threads of its ranks, where known."""
    host = run.rank(rank).host
    on_host = [meta for meta in run.meta.ranks if meta.host == host]
    known = {"cpus_for_each_rank": None if (cpus := cpus_of(run, rank)) is None else Evidence(round(cpus, 1))}
    if all(meta.threads for meta in on_host):
        known["operator_threads_on_host"] = Evidence(sum(meta.threads or 0 for meta in on_host))
    return {name: one for name, one in known.items() if one is not None}


_LOAD_ADVICE = (
    "Look for other load on the host (other jobs, loader workers, data preparation), and check whether the ranks "
    "have more threads than the host has CPUs. Set OMP_NUM_THREADS or torch.set_num_threads, use fewer loader "
    "workers, or bind each rank to its own CPUs. While threads wait for CPUs, other findings are less certain."
)
_QUOTA_ADVICE = (
    "The job's control group has used up its CPU quota. Raise the quota, or use fewer threads and loader workers "
    "than it allows, so that the training thread is not throttled with them."
)

_PAGES = (
    Page(
        "ESP404",
        "Training threads wait for a CPU",
        "The training thread is ready to run, but the kernel runs something else on its CPU (another job, threads "
        "of other ranks, loader workers), or a quota throttles it. Everything that the thread does then takes longer.",
        "`waiting for cpu` is the time per step, by rank, in which the training thread was ready to run but had no CPU, "
        "as counted by the kernel (/proc/…/schedstat). `throttled by quota` is how long its control groups were "
        "throttled, summed over CPUs. `operator threads on host` is the maximum number of compute threads of the host's "
        "ranks. Waits of other compute threads are not counted, so the values are lower bounds. Traces "
        "without these counters show stalls instead (`stalled`, `late per step`): at least three ranks stall repeatedly, "
        "each at different operations. A stall lasts at least a millisecond, and ten times as long as the same work on "
        "the other ranks.",
        "`runqueue=0` of these ranks: replay removes that time from the work of their training threads and replays the "
        f"whole job. If one waits for at least {100 * MIN_CERTAIN_SHARE_OF_STEP:.0f} % of a step beyond the scatter of "
        "steps, half of the saving counts as certain.",
        "Use fewer threads, workers or jobs on the host; raise the quota; bind each rank to its own CPUs.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=cpu_contention)
