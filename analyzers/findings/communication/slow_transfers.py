"""ESP304: transfers between GPUs that take far longer than their bytes need at the rate that others of their kind reach."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.transfers import SteadyStateCollectives, transfers
from esprof.core.types import NS_PER_S
from esprof.replay.dfg import LaneKind
from esprof.replay.whatif.communication.links import line
from esprof.replay.whatif.grammar import literal

FAST_QUANTILE = 0.1
"""Share of the transfers of a kind, those with the least time a byte, that show what its link can do."""

MIN_TIMES_THE_FAST = 1.5
"""From how many times as long as at that rate on transfers count as slow."""

MIN_SHARE_SLOW = 0.1
"""Least share of the transfers of a kernel that must be slow: any link is now and then."""

MIN_TRANSFERS = 20
"""Transfers of a kind in the steady steps, on all ranks, from which on the fastest of them tell something."""

MIN_MORE_HIDDEN_SHARE = 0.25
"""By how much more of their time slow transfers must run beside computing than fast ones, for that to be named."""


@dataclass(frozen=True)
class _Slow:
    """Transfers that take longer than they need."""

    is_slow: np.ndarray
    """Mask of the transfers that take `MIN_TIMES_THE_FAST` times what they need, bool[transfers]."""
    is_known: np.ndarray
    """Mask of those of which it is known what they need."""
    needed_ns: np.ndarray
    """What each needs at the rate of the fastest of its kind, ns, float64[transfers]; 0 where it is not known."""


def slow_transfers(case: Case) -> Iterator[Cause]:
    """Transfers on GPU streams of which many are far slower than the fastest of the same kind and process group."""
    sent = transfers(case.replayed)
    slow = _slow(sent)
    factors = _factors(sent, slow)
    if not factors:
        return
    scenario = ",".join(f"collective[^{literal(name)}$]={factor:.3g}x" for name, factor in sorted(factors.items()))
    if not case.worth_naming(case.pricer.saving_ns(scenario)):
        return
    mine = slow.is_slow & np.isin(sent.dfg.name[sent.node], [sent.dfg.names.index(name) for name in factors])
    longer = float(sent.took_ns[mine].sum() / slow.needed_ns[mine].sum())
    beside = _is_beside_computing(sent, mine, slow.is_known & ~slow.is_slow)
    yield Cause(
        id="ESP304",
        title=f"{sent.a_step(mine):.1f} transfers a step take {longer:.1f} times as long as others of their kind for their "
        "bytes",
        ranks=sent.dfg.marks.ranks,
        scenario=scenario,
        confidence="medium",
        evidence={
            "slow_transfers_per_step_and_rank": Evidence(round(sent.a_step(mine), 1)),
            "rate_of_slow": Evidence(round(sent.rate(mine)), "bytes/s"),
            "rate_of_fastest": Evidence(
                round(float(sent.bytes[mine].sum() / slow.needed_ns[mine].sum()) * NS_PER_S), "bytes/s"
            ),
            "exposed": by_rank({rank: round(ns) for rank, ns in sent.exposed_ns(mine).items()}, "ns"),
            "beside_computing": Evidence(beside),
        },
        advice=_BESIDE_COMPUTING if beside else _ALONE,
    )


def _slow(sent: SteadyStateCollectives) -> _Slow:
    """By process group (a stream) and kernel: a constant time for each, and its bytes at the rate of the fastest."""
    dfg = sent.dfg
    needed, known = np.zeros(len(sent.node)), np.zeros(len(sent.node), bool)
    roles = {role: at for at, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([roles[lane.role] for lane in dfg.lanes])[dfg.lane[sent.node]]
    kind = role * len(dfg.names) + dfg.name[sent.node]
    counted = dfg.on(LaneKind.STREAM)[sent.node] & (sent.bytes > 0)
    for one in np.unique(kind[counted]).tolist():
        mine = np.flatnonzero(counted & (kind == one))
        if len(mine) < MIN_TRANSFERS:
            continue
        size, took = sent.bytes[mine], sent.took_ns[mine]
        drawn = line(size, took)
        fixed = min(drawn.fixed_ns, float(took.min())) if drawn else 0.0
        # What is small takes the fixed time, and tells nothing of the rate.
        large = size >= np.median(size) / 2
        ns_per_byte = float(np.quantile((took[large] - fixed) / size[large], FAST_QUANTILE))
        needed[mine], known[mine] = fixed + ns_per_byte * size, True
    return _Slow(known & (sent.took_ns > MIN_TIMES_THE_FAST * needed), known, needed)


def _factors(sent: SteadyStateCollectives, slow: _Slow) -> dict[str, float]:
    """Name of a kernel -> by how many times it is as fast where none of its transfers is slow; those that are as fast now
    are left out."""
    names, excess = sent.dfg.name[sent.node], np.where(slow.is_slow, sent.took_ns - slow.needed_ns, 0.0)
    factors = {}
    for name in np.unique(names[slow.is_slow]).tolist():
        mine = names == name
        took = float(sent.took_ns[mine].sum())
        factor = took / (took - float(excess[mine].sum()))
        if factor >= MIN_TIMES_THE_FAST and slow.is_slow[mine].mean() >= MIN_SHARE_SLOW:
            factors[sent.dfg.names[name]] = factor
    return factors


def _is_beside_computing(sent: SteadyStateCollectives, slow: np.ndarray, fast: np.ndarray) -> bool:
    """Whether clearly more of the slow transfers' time than of the fast ones' runs beside computing."""
    hidden = []
    for chosen in (slow, fast):
        exposed = sum(sent.exposed_ns(chosen).values()) * len(sent.replayed.steps.steady)
        hidden.append(1 - exposed / max(float(sent.took_ns[chosen].sum()), 1.0))
    return bool(hidden[0] > hidden[1] + MIN_MORE_HIDDEN_SHARE)


_BESIDE_COMPUTING = (
    "They are slow while the GPU computes: both want its memory and its cores. Try fewer or more of NCCL's channels "
    "(NCCL_MAX_CTAS, NCCL_MIN_CTAS), or issue them where the GPU does less."
)
_ALONE = (
    "Nothing of the job tells why: look at what else uses the link then (other jobs, storage, other process groups), at "
    "errors and retries (nvidia-smi nvlink -e, ibqueryerrors), and at whether ranks are on the nodes that they should be."
)

_PAGES = (
    Page(
        "ESP304",
        "Transfers below the rate of their link",
        "Transfers of one process group and kind move their bytes at very different rates: many take half as long again, or "
        "more, as the fastest tenth of them would.",
        "Only between GPUs, where the time of a transfer is known from when its last rank came, and of kinds with twenty "
        "transfers or more. `rate_of_slow` against `rate_of_fastest`: what a transfer costs beside its bytes is left out, "
        "and the rate is that of the fastest tenth. `beside_computing` tells whether clearly more of the slow ones' time "
        "than of the others' runs beside computing. A link that is slow all the time is not seen: nothing tells what it "
        "could do.",
        "`collective[…]=`: replay makes the transfers of that name faster by as much as all slow ones together are too "
        "slow.",
        "Look for what else uses the link, or give transfers less, or more, of the GPU.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=slow_transfers)
