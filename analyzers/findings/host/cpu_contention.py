"""ESP404: training threads that could run, and have no CPU."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import CPU_CONTENTION
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.ranks.blame import arrivals
from esprof.replay.ranks.stalls import starved_ns
from esprof.replay.whatif.graph.host_cpus import cpus_of
from esprof.replay.whatif.term import scope
from esprof.run.run import Run
from esprof.run.schema import Table

MIN_SHARE_OF_STEP = 0.03
"""Share of its steps that a rank must be without a CPU to be named: the kernel alone takes some of it now and then."""

MIN_SHARE_OF_WORST_RANK = 0.5
"""Least time without a CPU, as a share of the worst rank's, for which a rank is named beside it: those that wait far less
wait for that one anyway."""


def cpu_contention(case: Case) -> Iterator[Cause]:
    """Ranks whose training thread waits for a CPU."""
    steps = np.array(case.replayed.steps.steady)
    tables = {rank: _told(case.job.steps, rank, steps) for rank in case.replayed.built.dfg.marks.ranks}
    waited = {rank: float(table.ints("ready_ns").mean()) for rank, table in tables.items() if len(table)}
    if not waited:
        yield from _starved(case)
    worst_ns = max(waited.values(), default=0.0)
    if worst_ns < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return
    ranks = tuple(rank for rank, ns in sorted(waited.items()) if ns >= MIN_SHARE_OF_WORST_RANK * worst_ns)
    scenario = "runqueue=0" if len(ranks) == len(tables) else f"{scope(ranks)}.runqueue=0"
    if not case.worth_naming(case.pricer.saving_ns(scenario)):
        return
    throttled = {rank: _throttled_ns(tables[rank]) for rank in ranks}
    by_quota = max(throttled.values()) > worst_ns / 2
    takes = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(worst_ns)} a step"
    because = "a CPU quota stops it" if by_quota else "something else uses the CPUs"
    yield Cause(
        id=CPU_CONTENTION,
        title=f"{readable.ranks(ranks).capitalize()} could run, but had no CPU for {takes}: {because}",
        ranks=ranks,
        scenario=scenario,
        confidence="high",
        evidence={"without_a_cpu": by_rank({rank: round(waited[rank]) for rank in ranks}, "ns")}
        | ({"stopped_by_quota": by_rank(throttled, "ns")} if by_quota else {})
        | _demand(case.run, ranks[0]),
        advice=_QUOTA if by_quota else _OTHERS,
    )


def _starved(case: Case) -> Iterator[Cause]:
    """Ranks of which only their stalls tell that they have no CPU."""
    stalls, blame = starved_ns(case.pricer.blame), case.pricer.blame
    if stalls is None or not case.worth_naming(case.pricer.saving_ns("runqueue=0")):
        return
    dfg, steps = blame.dfg, blame.steps
    here = np.flatnonzero((stalls > 0) & np.isin(dfg.step, steps))
    lost = {rank: round(float(stalls[here[dfg.rank[here] == rank]].sum()) / len(steps)) for rank in dfg.marks.ranks}
    late = dict(zip(dfg.marks.ranks, arrivals(dfg, steps).late_ns() / len(steps), strict=True))
    latest = tuple(rank for rank, ns in late.items() if ns >= MIN_SHARE_OF_WORST_RANK * max(late.values()) > 0)
    worst = f"; the others wait for {readable.ranks(latest)} most" if latest else ""
    yield Cause(
        id=CPU_CONTENTION,
        title=f"All ranks stall for up to {readable.duration(max(lost.values()))} a step, each at other places, as if they "
        f"had no CPU{worst}",
        ranks=tuple(lost),
        scenario="runqueue=0",
        confidence="medium",
        evidence={
            "stalled": by_rank(lost, "ns"),
            "stalls_per_step_and_rank": Evidence(round(len(here) / len(steps) / len(lost), 1)),
            "longest_stall": Evidence(int(stalls[here].max()), "ns"),
            "late_per_step": by_rank({rank: round(ns) for rank, ns in late.items()}, "ns"),
        },
        advice=_OTHERS,
    )


def _told(job: JobSteps, rank: Rank, steps: np.ndarray) -> Table:
    """The rows of those of `steps` that tell how long the training thread waited for a CPU."""
    table = job.rows(rank, steps)
    return table.where(table.ints("ready_ns") >= 0)


def _throttled_ns(table: Table) -> int:
    """How long the rank's control groups were stopped in a mean step, ns, summed over CPUs."""
    return round(float(np.maximum(table.ints("throttled_ns"), 0).mean()))


def _demand(run: Run, rank: Rank) -> dict[str, Evidence]:
    """What its ranks ask of the host of `rank`, and what it has, as far as that is known."""
    host = run.rank(rank).host
    there = [meta for meta in run.meta.ranks if meta.host == host]
    known = {"cpus_for_each_rank_at_most": None if (cpus := cpus_of(run, rank)) is None else Evidence(round(cpus, 1))}
    if all(meta.threads for meta in there):
        known["threads_of_operations_on_the_host"] = Evidence(sum(meta.threads or 0 for meta in there))
    return {name: one for name, one in known.items() if one is not None}


_OTHERS = (
    "See what else runs on the host (other jobs, loader workers, data preparation), and whether the ranks' own threads are "
    "more than its CPUs: OMP_NUM_THREADS or torch.set_num_threads, fewer loader workers, ranks bound to CPUs of their own. "
    "While threads wait for CPUs, what other findings say is less sure."
)
_QUOTA = (
    "The control group of the job may use no more CPU time: raise its quota, or use fewer threads and loader workers than "
    "it allows, so that the training thread is not stopped with them."
)

_PAGES = (
    Page(
        "ESP404",
        "Training threads wait for a CPU",
        "The training thread is ready to run, and the kernel runs something else on its CPU: another job, the threads of "
        "other ranks, loader workers; or a quota has stopped it. All that it does takes longer, wherever it happens to be.",
        "`without_a_cpu` is how long the training thread was ready to run and did not, in a mean step of each rank, as the "
        "kernel counts it (/proc/…/schedstat); `stopped_by_quota` how long its control groups were stopped, summed over "
        "CPUs; `threads_of_operations_on_the_host` how many threads the ranks of that host may compute with at a time. "
        "Threads that compute for it are not counted, so that this is the least that is so. Where a trace tells nothing of "
        "that, stalls do: of three ranks or more all stop again and again, for a millisecond or more and ten times as long "
        "as the same work takes on the others, each at other places (`stalled`, `late_per_step`).",
        "`runqueue=0` of these ranks: replay takes that time from what their training threads did, and runs the whole job "
        "again.",
        "Fewer threads, workers or jobs on the host; a higher quota; ranks bound to CPUs of their own.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=cpu_contention)
