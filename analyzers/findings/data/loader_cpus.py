"""ESP113: loader workers that use the CPUs for which training threads wait."""

from collections.abc import Iterator, Mapping

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.host.cpu_contention import certain_share, waiting_ranks, waits_ns, without_waits
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.whatif.error.model_errors import BUSY_SHARE_OF_CPUS
from esprof.replay.whatif.host.host_cpus import batch_cpu_ns, batches_ns, sharing, thread_ns

MIN_SHARE_OF_WAITS = 0.5
"""Least CPU time of loader workers, as a share of the time for which the training threads on the same CPUs wait for one.
While a thread waits, something else runs on its CPU: no other work can then take as much as the workers do."""


def loader_cpus(case: Case) -> Iterator[Cause]:
    """Ranks that wait for a CPU mostly because loader workers use them."""
    waited = waits_ns(case)
    shares = _shares(case, waited)
    ranks = tuple(rank for rank in waiting_ranks(case, waited) if shares.get(rank, 0.0) >= MIN_SHARE_OF_WAITS)
    if not ranks:
        return
    scenario = without_waits(case, ranks)
    share = min(1.0, *(shares[rank] for rank in ranks))
    if not case.is_worth_reporting(share * (case.pricer.saving_ns(scenario) or 0.0)):
        return
    ran = {rank: float(batches_ns(case.run, rank, case.replayed.steps.steady).mean()) for rank in ranks}
    up_to = "up to " if len(ranks) > 1 else ""
    yield Cause(
        id="ESP113",
        title=f"Loader workers use the CPUs for which {readable.ranks(ranks)} {readable.verb('wait', ranks)} {up_to}"
        f"{readable.duration(max(waited[rank] for rank in ranks))} a step: batches take {up_to}"
        f"{readable.duration(max(ran.values()))} of CPU time a step",
        ranks=ranks,
        scenario=scenario,
        certain_share=certain_share(case, ranks),
        share_of_scenario=share,
        confidence="medium",
        evidence={
            "waiting_for_cpu": by_rank({rank: round(waited[rank]) for rank in ranks}, "ns"),
            "loader_workers_ran": by_rank({rank: round(ns) for rank, ns in ran.items()}, "ns"),
            "batch_cpu": by_rank({rank: round(batch_cpu_ns(case.run, rank) or 0.0) for rank in ranks}, "ns"),
            "cpus": Evidence(round(next(cpus for some, cpus in sharing(case.run).items() if ranks[0] in some), 1)),
        },
        advice="The number of workers hardly matters: their work needs the CPUs. Do less for each sample, prepare the data "
        "before training, compute on whole batches (NumPy, torch) instead of in Python loops, use a faster decoder, or give "
        "the host more CPUs.",
    )


def _shares(case: Case, waited: Mapping[Rank, float]) -> dict[Rank, float]:
    """CPU time of loader workers, as a share of the time for which training threads on the same CPUs wait, by rank; only for
    ranks whose threads and workers alone keep their CPUs busy."""
    steps = case.replayed.steps.steady
    found: dict[Rank, float] = {}
    for ranks, cpus in sharing(case.run).items():
        workers = {rank: float(batches_ns(case.run, rank, steps).mean()) for rank in ranks}
        threads_ns = sum(float(thread_ns(case.run, rank, steps).mean()) for rank in ranks)
        known = [rank for rank in ranks if waited.get(rank)]
        is_busy = sum(workers.values()) + threads_ns >= BUSY_SHARE_OF_CPUS * cpus * case.pricer.step_ns
        if known and is_busy:
            share = sum(workers[rank] for rank in known) / sum(waited[rank] for rank in known)
            found.update(dict.fromkeys(known, share))
    return found


_PAGES = (
    Page(
        "ESP113",
        "Loader workers use the CPUs that the training needs",
        "Making batches costs time even if no rank waits for one: the workers run on the CPUs that the training threads "
        "need, which are ready to run meanwhile. This happens on hosts with few CPUs for each rank, and "
        "under CPU quotas.",
        "`waiting for cpu` is the time of a step in which the training thread was ready to run but had no CPU, by rank, as "
        "in ESP404. `loader workers ran` is the CPU time of the batches that the rank takes in a step, at least "
        f"{100 * MIN_SHARE_OF_WAITS:.0f} % of that. `batch cpu` is that of one batch, and `cpus` how many CPUs these ranks "
        f"share. Training threads and workers together use at least {100 * BUSY_SHARE_OF_CPUS:.0f} % of them.",
        "`runqueue=0` of these ranks, times the share of the waits that the workers' CPU time can explain. Half of "
        "it counts as certain where it does for ESP404.",
        "Do less work for each sample, prepare the data before training, use faster code for it, or more CPUs.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=loader_cpus)
