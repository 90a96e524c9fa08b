"""Gradients of FSDP2 between CPUs: the reduce-scatters in which they travel, and the same with bf16 on the wires.

`esprof probe` measured the cost with the same code (`shards`). The thread of the backward pass waits while gradients are
cast, sent and added, as it does for the reduce-scatter that this replaces: all three count as communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from esprof.core.types import Bytes, Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.launched import carried_out_as, launched_by
from esprof.replay.whatif.gradients import gloo_buckets
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.compressed import Cost, ExchangeCosts
from esprof.run.collective_names import ITEM_BYTES, collective_word
from esprof.run.run import Run

_SCATTER = "reduce_scatter"
_SINGLE = ("float", "float32")


@dataclass(frozen=True)
class Shards:
    """A graph whose gradients travel by reduce-scatters in single precision."""

    run: Run
    dfg: Dfg
    sizes: tuple[Bytes, ...]
    """Bytes that each reduce-scatter of a step reduces, in order of time; the same in all steps."""
    collectives: tuple[np.ndarray, ...]
    """Ids of the communication nodes of each reduce-scatter."""

    @classmethod
    def of(cls, run: Run, dfg: Dfg) -> "Shards | None":
        """None without reduce-scatters between CPUs. Raises NotBuckets if they cannot be sent as bf16, or gradients also use
        all-reduces."""
        found = np.concatenate([_scattered(run, dfg, rank) for rank in dfg.marks.ranks])
        if not len(found):
            return None
        _check(run, dfg, found)
        order = found[np.lexsort((found, dfg.recorded_ns[found], dfg.step[found], dfg.rank[found]))]
        passes = [tuple(mine) for _, mine in groupby(order.tolist(), key=lambda node: (dfg.rank[node], dfg.step[node]))]
        known = {tuple(int(dfg.bytes[node]) for node in one) for one in passes}
        if len(known) != 1 or len(passes) != len(dfg.marks.ranks) * len(dfg.marks.steps):
            raise NotBuckets("its reduce-scatters differ between steps or ranks")
        (sizes,) = known
        return cls(run, dfg, sizes, tuple(map(np.array, zip(*passes, strict=True))))

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """Cost of each reduce-scatter sent as bf16. Raises NotBuckets if it was not measured."""
        measured = ExchangeCosts(self.run, self.dfg.marks.ranks)
        return tuple(measured.of_shards(size) for size in self.sizes)

    def compressed(self, costs: Sequence[Cost | None]) -> tuple[Dfg, np.ndarray]:
        """(graph with these costs per reduce-scatter, None for an unchanged one; `taken`).

        `taken` is the CPU time that communication takes from concurrent work, ns, float64[N]; NaN where it follows from the
        communicated bytes.
        """
        dur, nbytes, taken = self.dfg.dur_ns.copy(), self.dfg.bytes.copy(), np.full(self.dfg.nodes, np.nan)
        for cost, collectives in zip(costs, self.collectives, strict=True):
            if cost is not None:
                dur[collectives] = round(max(cost.begin_ns) + cost.link_ns + cost.coding_ns)
                taken[collectives] = max(0.0, cost.cpu_ns - cost.coding_ns)
                nbytes[collectives] = cost.sent if cost.sent is not None else nbytes[collectives]
        return replace(self.dfg, dur_ns=dur, bytes=nbytes), taken

    def at_no_cost(self, link_ns: Sequence[float]) -> tuple[Dfg, np.ndarray]:
        """Like `compressed`, with each reduce-scatter at most `link_ns` on the link and no other cost."""
        dur = self.dfg.dur_ns.copy()
        for took, collectives in zip(link_ns, self.collectives, strict=True):
            dur[collectives] = np.minimum(dur[collectives], took)
        return replace(self.dfg, dur_ns=dur), np.zeros(self.dfg.nodes)


def _scattered(run: Run, dfg: Dfg, rank: Rank) -> np.ndarray:
    """Ids of a rank's communication nodes that were launched by reduce-scatters, which gloo implements by all-reduces."""
    table = run.events(rank)
    alike = table.matches("name", lambda name: carried_out_as(collective_word(name)) == carried_out_as(_SCATTER))
    starts = table.ints("start_ns")
    is_call = table.matches("name", lambda name: name.startswith("c10d::"))
    calls, collectives = (
        np.flatnonzero(alike & table.is_kind(kind) & (is_call == (kind == "op"))) for kind in ("op", "collective")
    )
    calls, collectives = (rows[np.lexsort((rows, starts[rows]))] for rows in (calls, collectives))
    chosen = launched_by(starts[calls], starts[collectives])
    by_scatter = table.matches("name", lambda name: collective_word(name) == _SCATTER)[calls]
    rows = collectives[(chosen >= 0) & np.append(by_scatter, False)[chosen]]
    of_link = dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.rank == rank)
    return np.flatnonzero(of_link & np.isin(dfg.event, rows))


def _check(run: Run, dfg: Dfg, scattered: np.ndarray) -> None:
    """Raises NotBuckets if these reduce-scatters cannot be sent as bf16, or gradients also use all-reduces."""
    if dfg.has_gpu():
        raise NotBuckets("the cost of compression between GPUs is not modelled yet")
    types = {kind for rank in dfg.marks.ranks for kind in _types(run, dfg, scattered[dfg.rank[scattered] == rank])}
    if "" in types or (dfg.bytes[scattered] <= 0).any():
        raise NotBuckets("the data type of its reduce-scatters was not recorded (record with --shapes --stack-steps 0)")
    if all(ITEM_BYTES.get(kind) == 2 for kind in types):
        raise NotBuckets("its reduce-scatters already send 16-bit floats, so nothing can be saved")
    if not types <= set(_SINGLE):
        raise NotBuckets(f"its reduce-scatters send other types than 32-bit floats: {', '.join(sorted(types))}")
    for collective in np.unique(dfg.collective[scattered]).tolist():
        if set(dfg.rank[scattered[dfg.collective[scattered] == collective]].tolist()) != set(dfg.marks.ranks):
            raise NotBuckets("its reduce-scatters do not include all ranks")
    arrivals = gloo_buckets.launched_by_gradients(dfg)
    if set(dfg.collective[arrivals].tolist()) - set(dfg.collective[scattered].tolist()):
        raise NotBuckets("its gradients use both reduce-scatters and all-reduces")


def _types(run: Run, dfg: Dfg, nodes: np.ndarray) -> set[str]:
    """Lower-case data types of these communication nodes, all of one rank; "" for a type that was not recorded."""
    (rank,) = set(dfg.rank[nodes].tolist())
    codes, names = run.events(rank).codes("dtype")
    return {(names[code] or "").lower() if code >= 0 else "" for code in np.unique(codes[dfg.event[nodes]]).tolist()}
