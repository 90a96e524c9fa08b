"""ESP304: collectives between GPUs with far less bandwidth than others of their kind."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.collectives import SteadyStateCollectives, steady_collectives
from esprof.analyzers.views.links import link_use
from esprof.core.types import NS_PER_S
from esprof.replay.dfg import LaneKind
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.communication.links import line
from esprof.replay.whatif.grammar import literal

FAST_QUANTILE = 0.1
"""Quantile of the time per byte of the collectives of a kind that shows the bandwidth of the link."""

MIN_TIMES_THE_FAST = 1.5
"""Least ratio of a slow collective's time to its time at that bandwidth."""

MIN_SHARE_SLOW = 0.1
"""Least share of a kernel's collectives that must be slow: any link is slow at times."""

MIN_COLLECTIVES = 20
"""Least number of collectives of a kind, over all ranks, for the fastest to be representative."""

MIN_MORE_OVERLAP = 0.25
"""Least difference between the shares of time in which slow and fast collectives overlap compute, to be reported."""


@dataclass(frozen=True)
class _Slow:
    """Collectives that take longer than necessary."""

    is_slow: np.ndarray
    """Mask of the collectives that take `MIN_TIMES_THE_FAST` times the necessary time, bool[collectives]."""
    is_known: np.ndarray
    """Mask of the collectives whose necessary time is known, bool[collectives]."""
    needed_ns: np.ndarray
    """Time at the bandwidth of the fastest collectives of the kind, ns, float64[collectives]; 0 where unknown."""

    def of(self, names: Container[str], sent: SteadyStateCollectives) -> np.ndarray:
        """Mask of the slow ones of kernels with these names, bool[collectives]."""
        wanted = np.isin(sent.dfg.name[sent.node], [at for at, name in enumerate(sent.dfg.names) if name in names])
        mask: np.ndarray = self.is_slow & wanted
        return mask


def slow_collectives(case: Case) -> Iterator[Cause]:
    """Collectives on GPU streams, many of which are far slower than the fastest of the same kind and process group."""
    sent, slow = _compared(case.communication)
    factors = _factors(sent, slow)
    if not factors:
        return
    scenario = ",".join(f"collective[^{literal(name)}$]={factor:.3g}x" for name, factor in sorted(factors.items()))
    if not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    mine = slow.of(factors, sent)
    longer = float(sent.took_ns[mine].sum() / slow.needed_ns[mine].sum())
    examined, of_examined = (sent, slow) if sent.replayed is case.replayed else _compared(case.replayed)
    shown = of_examined.of(factors, examined)
    overlaps = bool(shown.any()) and _overlap_compute(examined, shown, of_examined.is_known & ~of_examined.is_slow)
    fastest = float(sent.bytes[mine].sum() / slow.needed_ns[mine].sum()) * NS_PER_S
    use = link_use(sent, mine)
    yield Cause(
        id="ESP304",
        title=f"{sent.a_step(mine):.1f} collectives a step take {longer:.1f} times as long as the fastest of the "
        "same kind and size",
        ranks=sent.dfg.marks.ranks,
        scenario=scenario,
        confidence="medium",
        evidence={
            "slow_collectives_per_step_and_rank": Evidence(round(sent.a_step(mine), 1)),
            "bandwidth_of_slow": Evidence(round(sent.rate(mine)), "bytes/s"),
            "bandwidth_of_fastest": Evidence(round(fastest), "bytes/s"),
            **(use.evidence({"slow": sent.rate(mine), "fastest": fastest}) if use else {}),
            "exposed": by_rank({rank: round(ns) for rank, ns in examined.exposed_ns(shown).items()}, "ns"),
            "overlap_compute": Evidence(overlaps),
        },
        advice=_OVERLAPPING_COMPUTE if overlaps else _NOT_OVERLAPPING,
    )


def _compared(replayed: Replayed) -> tuple[SteadyStateCollectives, _Slow]:
    sent = steady_collectives(replayed)
    return sent, _slow(sent)


def _slow(sent: SteadyStateCollectives) -> _Slow:
    """Compare each collective with a fixed time plus its bytes at the bandwidth of the fastest collectives.

    By kernel and process group, each of which has a stream of its own.
    """
    dfg = sent.dfg
    needed, known = np.zeros(len(sent.node)), np.zeros(len(sent.node), bool)
    roles = {role: at for at, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([roles[lane.role] for lane in dfg.lanes])[dfg.lane[sent.node]]
    kind = role * len(dfg.names) + dfg.name[sent.node]
    counted = dfg.on(LaneKind.STREAM)[sent.node] & (sent.bytes > 0)
    for one in np.unique(kind[counted]).tolist():
        mine = np.flatnonzero(counted & (kind == one))
        if len(mine) < MIN_COLLECTIVES:
            continue
        size, took = sent.bytes[mine], sent.took_ns[mine]
        fit = line(size, took)
        fixed = min(fit.fixed_ns, float(took.min())) if fit else 0.0
        # Small collectives take the fixed time only and say nothing about bandwidth.
        large = size >= np.median(size) / 2
        ns_per_byte = float(np.quantile((took[large] - fixed) / size[large], FAST_QUANTILE))
        needed[mine], known[mine] = fixed + ns_per_byte * size, True
    return _Slow(known & (sent.took_ns > MIN_TIMES_THE_FAST * needed), known, needed)


def _factors(sent: SteadyStateCollectives, slow: _Slow) -> dict[str, float]:
    """Name of a kernel -> its speed-up if none of its collectives were slow; kernels with a small one are omitted."""
    names, excess = sent.dfg.name[sent.node], np.where(slow.is_slow, sent.took_ns - slow.needed_ns, 0.0)
    factors = {}
    for name in np.unique(names[slow.is_slow]).tolist():
        mine = names == name
        took = float(sent.took_ns[mine].sum())
        factor = took / (took - float(excess[mine].sum()))
        if factor >= MIN_TIMES_THE_FAST and slow.is_slow[mine].mean() >= MIN_SHARE_SLOW:
            factors[sent.dfg.names[name]] = factor
    return factors


def _overlap_compute(sent: SteadyStateCollectives, slow: np.ndarray, fast: np.ndarray) -> bool:
    """Whether slow collectives overlap compute for a clearly larger share of their time than fast ones."""
    hidden = []
    for chosen in (slow, fast):
        exposed = sum(sent.exposed_ns(chosen).values()) * len(sent.replayed.steps.steady)
        hidden.append(1 - exposed / max(float(sent.took_ns[chosen].sum()), 1.0))
    return bool(hidden[0] > hidden[1] + MIN_MORE_OVERLAP)


_OVERLAPPING_COMPUTE = (
    "They are slow while the GPU computes, because both compete for its memory bandwidth and cores. Try fewer or "
    "more NCCL channels (NCCL_MAX_CTAS, NCCL_MIN_CTAS), or launch them when the GPU does less."
)
_NOT_OVERLAPPING = (
    "The cause is outside the recorded job. Check for other traffic on the link (other jobs, storage, other process "
    "groups), errors and retries (nvidia-smi nvlink -e, ibqueryerrors), and the placement of ranks on nodes."
)

_PAGES = (
    Page(
        "ESP304",
        "Collectives below the bandwidth of their link",
        "Collectives of one process group and kind have very different bandwidths: many take at least one and a "
        "half times as long as the fastest tenth of them would.",
        "Only between GPUs, where communication starts when the last rank arrives, and only kinds with at least twenty "
        "collectives. `bandwidth of slow` is compared with `bandwidth of fastest`, that of the fastest tenth, "
        "without the fixed cost of a collective. `overlap compute` says whether slow collectives overlap compute "
        "for a clearly larger share of their time than the others. `share of link` is their bus bandwidth as a share of "
        "the link's peak, if that is known (`esprof ops` says how). A link that is always slow is not detected.",
        "`collective[…]=`: replay speeds the collectives of that name up by the total excess time of the slow ones.",
        "Find other traffic on the link, or give NCCL fewer, or more, of the GPU's cores.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=slow_collectives)
