"""`balance=fix`: the same work takes all ranks as long; `balance[stages]=fix`: all stages of a pipeline compute as long;
`balance[microbatches]=fix`: so do all micro-batches."""

from collections.abc import Iterable, Iterator

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.ranks.blame import NewDurations
from esprof.replay.ranks.pipeline import micro_batch_work, pipeline_of
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word

STAGES, MICRO_BATCHES = "stages", "microbatches"


def _argument(text: str) -> str:
    if text not in (STAGES, MICRO_BATCHES):
        remedy = f"Write balance=fix, balance[{STAGES}]=fix or balance[{MICRO_BATCHES}]=fix."
        raise UsageError(f"{text!r} cannot be balanced", remedy=remedy)
    return text


def _balanced(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    # Stages first: what ranks of the same role then differ by is evened out after it.
    arguments = {term.argument for term in terms}
    for argument, balance in ((STAGES, _even_stages), (MICRO_BATCHES, _even_micro_batches), (None, _alike)):
        if argument in arguments:
            now = balance(now)
    return now


def _alike(now: Scenario) -> Scenario:
    """`now` with the mean over ranks of its counterparts for each node, on ranks that share their role with another.

    Raises Declined where there are no such ranks.
    """
    matched = 0

    def changes() -> Iterator[NewDurations]:
        nonlocal matched
        for part in now.blame_now.parts():
            mean = part.peers.mean
            known = ~np.isnan(mean) & part.shares_role
            matched += int(np.count_nonzero(known))
            dur = part.work_ns.copy()
            dur[known] = np.rint(mean[known]).astype(np.int64)
            yield NewDurations.to(part, dur)

    after = now.mended(now.blame_now.changed(changes()))
    if not matched:
        raise Declined("no two ranks do the same work")
    return after.noted("an upper bound: no rank has more work than another")


def _even_stages(now: Scenario) -> Scenario:
    """`now` with the computing of each stage scaled so that all stages compute as long in a mean step.

    Ranks of one stage stay as unlike as they are. Raises Declined where the ranks are no stages of a pipeline.
    """
    blame, roles = now.blame_now, now.blame.roles
    if not roles.any():
        raise Declined("the ranks are not stages of a pipeline: they all do the same work, or exchange no messages")
    of_stage = stage_ns((part.dfg for part in blame.parts()), roles, now.steps)
    share = np.divide(of_stage.mean(), of_stage, out=np.ones(len(of_stage)), where=of_stage > 0)

    def changes() -> Iterator[NewDurations]:
        for part in blame.parts():
            dfg = part.dfg
            nodes = np.flatnonzero(_computing(dfg))
            of_node = share[roles[np.searchsorted(dfg.marks.ranks, dfg.rank[nodes])]]
            yield NewDurations(part, nodes, np.rint(dfg.dur_ns[nodes] * of_node).astype(np.int64))

    return now.mended(blame.changed(changes())).noted("an upper bound: layers cannot be divided so evenly")


def _even_micro_batches(now: Scenario) -> Scenario:
    """`now` with the mean over all micro-batches of a step, and over all ranks of a stage, for each compute node.

    The mean is the ideal duration of Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis
    (OSDI 2025, section 3), here by step and stage. Raises Declined where no micro-batches are known.
    """
    blame = now.blame_now
    pipeline = pipeline_of(now.run, blame.dfg, now.steps)
    if pipeline is None or pipeline.micro_batches < 2:
        raise Declined("the ranks are not stages of a pipeline, or their messages do not tell the micro-batches")
    sums = []
    for part in blame.parts():
        work = micro_batch_work(part.dfg, pipeline)
        same, which = np.unique(work.same, return_inverse=True)
        took_ns = np.bincount(which, part.work_ns[work.node], len(same))
        sums.append((same, took_ns, np.bincount(which, minlength=len(same))))
    of_parts, total_ns, count = (np.concatenate(column) for column in zip(*sums, strict=True))
    if not len(of_parts):
        raise Declined("no work is known to run once for each micro-batch")
    same, which = np.unique(of_parts, return_inverse=True)
    mean = np.rint(np.bincount(which, total_ns) / np.bincount(which, count)).astype(np.int64)

    def changes() -> Iterator[NewDurations]:
        for part in blame.parts():
            work = micro_batch_work(part.dfg, pipeline)
            yield NewDurations(part, work.node, mean[np.searchsorted(same, work.same)])

    after = now.mended(blame.changed(changes()))
    return after.noted("an upper bound: micro-batches are seldom all of one length")


def stage_ns(parts: Iterable[Dfg], roles: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """How long the ranks of each stage compute in a mean step, by their median, ns, float64[stages].

    The graphs have the nodes of some ranks each; `roles`, int[ranks], is the stage of each rank. A rank counts in the steps
    that it has.
    """
    took = np.zeros((len(roles), len(steps)))
    for dfg in parts:
        nodes = np.flatnonzero(_computing(dfg) & np.isin(dfg.step, steps))
        at = np.searchsorted(dfg.marks.ranks, dfg.rank[nodes]), np.searchsorted(steps, dfg.step[nodes])
        np.add.at(took, at, dfg.dur_ns[nodes])
    mean = took.sum(axis=1) / np.maximum((took > 0).sum(axis=1), 1)
    # Of two ranks the shorter: the other may be slow.
    return np.array([np.quantile(mean[roles == role], 0.5, method="lower") for role in range(roles.max() + 1)])


def _computing(dfg: Dfg) -> np.ndarray:
    mask: np.ndarray = dfg.of(Cls.COMPUTE, Cls.CONTENTION) & (dfg.rank >= 0)
    return mask


TERM = Kind(
    name="balance",
    examples=("balance=fix", "balance[stages]=fix", "balance[microbatches]=fix"),
    meaning="In each step, the same work takes the same time on all ranks: the mean over the ranks. `[stages]` gives all "
    "stages of a pipeline the same compute time, `[microbatches]` all micro-batches of a step.",
    needs="Two or more ranks that do the same work; for stages and micro-batches, ranks whose messages tell them.",
    assumes="Work can be divided perfectly, so the saving is an upper bound.",
    effect=Edit(TermPhase.MEND, _balanced),
    value=word("fix"),
    argument=_argument,
    argument_is_optional=True,
)
