"""DDP's gradient buckets between CPUs, compressed: the graph in which each bucket is encoded, sent and decoded.

`esprof probe` measured the cost with the code of the communication hook (`begin` and `exchange`). The thread of the backward
pass encodes, which delays its later work. The rest is on the link, one bucket after the other, and takes CPU time from
concurrent work.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from esprof.core.types import Bytes, Rank
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind
from esprof.replay.whatif.gradients import gloo_buckets
from esprof.replay.whatif.gradients.backward import BackwardPass, NotBuckets
from esprof.replay.whatif.graph.overlay import Overlay
from esprof.run.curve import BeyondCurveError
from esprof.run.probes import Kind, Probes, Sweep
from esprof.run.run import Run


class Cost(NamedTuple):
    """Cost of exchanging one bucket with a codec. Times in ns."""

    begin_ns: tuple[float, ...]
    """Encoding time on the thread of the backward pass, by rank of the run."""
    link_ns: float
    """Time on the link."""
    coding_ns: float
    """Coding between and after communication, concurrent with other buckets, on the slowest rank."""
    cpu_ns: float
    """CPU time after the begin."""
    sent: Bytes | None
    vnmse: float | None
    """Error of the codec on normally distributed numbers (`Point.vnmse`)."""


class Sized(NamedTuple):
    """A bucket."""

    nbytes: Bytes
    elements: tuple[int, ...]
    """Number of elements of each gradient in it, in the order in which they become ready."""


@dataclass(frozen=True)
class Compressible:
    """A graph in which each bucket of each rank and step has an encode and a decode node, initially of no duration."""

    run: Run
    dfg: Dfg
    buckets: tuple[Sized, ...]
    """In the order in which they become ready; the same in all steps."""
    encodes: tuple[dict[Rank, np.ndarray], ...]
    """Ids of the nodes that encode each bucket, by rank."""
    all_reduces: tuple[np.ndarray, ...]
    """Ids of the communication nodes of each bucket."""
    decodes: tuple[np.ndarray, ...]
    """Ids of the nodes that decode each bucket."""

    @classmethod
    def of(cls, run: Run, dfg: Dfg) -> "Compressible":
        """Raises NotBuckets if the buckets of the run are unknown, or differ between steps or ranks."""
        if dfg.has_gpu():
            raise NotBuckets("the cost of compression between GPUs is not modelled yet")
        passes = list(gloo_buckets.backward_passes(run, dfg))
        known = {_filled(dfg, one) for one in passes}
        if len(known) != 1:
            raise NotBuckets("its buckets differ between steps or ranks")
        (buckets,) = known
        threads = {rank: len(dfg.lanes) + at for at, rank in enumerate(dfg.marks.ranks)}
        lanes = tuple(Lane(rank, LaneKind.COMM, "decode") for rank in threads)
        overlay, of_collective = Overlay(replace(dfg, lanes=(*dfg.lanes, *lanes))), dict[int, int]()
        for one in passes:
            behind, before = accumulate(len(bucket.elements) for bucket in buckets), None
            for number, (last, arrival, all_reduce) in enumerate(
                zip(behind, one.arrivals, one.all_reduces, strict=True)
            ):
                _add_encode(overlay, one, number, last - 1, arrival)
                before = _add_decode(overlay, one, number, all_reduce, threads[one.rank], before)
                of_collective[int(dfg.collective[arrival])] = number
        made = overlay.compile()
        code = {name: number for number, name in enumerate(made.names)}
        encodes, decodes = [], []
        for number in range(len(buckets)):
            nodes = np.flatnonzero(made.name == code[_encode_name(number)])
            encodes.append({rank: nodes[made.rank[nodes] == rank] for rank in made.marks.ranks})
            decodes.append(np.flatnonzero(made.name == code[_decode_name(number)]))
        bucket_of = np.full(int(made.collective.max(initial=-1)) + 2, -1)
        bucket_of[list(of_collective)] = list(of_collective.values())
        of_node = np.where(made.of(Cls.COMMUNICATION), bucket_of[made.collective], -1)
        all_reduces = tuple(np.flatnonzero(of_node == number) for number in range(len(buckets)))
        return cls(run, made, buckets, tuple(encodes), all_reduces, tuple(decodes))

    @cached_property
    def costs(self) -> "ExchangeCosts":
        return ExchangeCosts(self.run, self.dfg.marks.ranks)

    def compressed(self, costs: Sequence[Cost | None]) -> tuple[Dfg, np.ndarray]:
        """(graph with these costs per bucket, None for an unchanged bucket; `taken`).

        `taken` is the CPU time that communication takes from concurrent work, ns, float64[N]; NaN where it follows from the
        communicated bytes.
        """
        dur, taken = self.dfg.dur_ns.copy(), np.full(self.dfg.nodes, np.nan)
        nbytes = self.dfg.bytes.copy()
        for cost, encodes, all_reduces, decodes in zip(
            costs, self.encodes, self.all_reduces, self.decodes, strict=True
        ):
            if cost is not None:
                for took, nodes in zip(cost.begin_ns, encodes.values(), strict=True):
                    dur[nodes] = round(took)
                dur[all_reduces], taken[all_reduces] = round(cost.link_ns), cost.cpu_ns
                dur[decodes] = round(cost.coding_ns)
                nbytes[all_reduces] = cost.sent if cost.sent is not None else nbytes[all_reduces]
        return replace(self.dfg, dur_ns=dur, bytes=nbytes), taken

    def at_no_cost(self, link_ns: Iterable[float]) -> tuple[Dfg, np.ndarray]:
        """Like `compressed`, with each bucket at most `link_ns` on the link and no other cost."""
        dur = self.dfg.dur_ns.copy()
        for took, all_reduces in zip(link_ns, self.all_reduces, strict=True):
            dur[all_reduces] = np.minimum(dur[all_reduces], took)
        return replace(self.dfg, dur_ns=dur), np.zeros(self.dfg.nodes)


@dataclass(frozen=True)
class ExchangeCosts:
    """Measured costs of exchanges of compressed gradients."""

    run: Run
    ranks: tuple[Rank, ...]

    @cached_property
    def _probes(self) -> Probes:
        if self.run.probes is None:
            raise NotBuckets("codecs and exchanges were not measured (run esprof probe, or record with --probe)")
        return self.run.probes

    @cached_property
    def codecs(self) -> tuple[str, ...]:
        """The codecs whose exchanges were measured with all ranks. Raises NotBuckets if there are none."""
        named = [one.name for one in self._probes.sweeps if one.kind == "exchange" and one.ranks == self.ranks]
        if not named:
            raise NotBuckets("no codec was measured with these ranks (probe with a larger --budget)")
        return tuple(dict.fromkeys(named))

    def cost(self, codec: str, nbytes: Bytes) -> Cost:
        """Cost of a bucket of `nbytes`. Raises NotBuckets if it was not measured."""
        if codec not in self.codecs:
            raise NotBuckets(f"{codec} was not measured; measured codecs: {', '.join(self.codecs)}")
        return self._cost(("exchange", "begin", "coding"), codec, nbytes)

    def of_shards(self, nbytes: Bytes) -> Cost:
        """Cost of a reduce-scatter of `nbytes` sent as bf16 and added in fp32. Raises NotBuckets if it was not measured."""
        return self._cost(("shards", "narrow", "add"), "bf16", nbytes)

    def _cost(self, kinds: tuple[Kind, Kind, Kind], codec: str, nbytes: Bytes) -> Cost:
        """`kinds` are the measurements of the whole exchange, of coding before communication, and of coding during and
        after it."""
        exchange = self._sweep(kinds[0], codec, self.ranks)
        try:
            took = exchange.curve().at(nbytes)
            started, coding = (
                tuple(min(took, self._sweep(kind, codec, (rank,)).curve().at(nbytes)) for rank in self.ranks)
                for kind in kinds[1:]
            )
        except BeyondCurveError as beyond:
            raise NotBuckets(f"a bucket of {beyond.in_bytes} (codec {codec})") from beyond
        nearest = min(exchange.points, key=lambda point: abs(point.size - nbytes))
        rest = took - max(started)
        cpu = max(0.0, (nearest.cpu_ns or 0) * nbytes / nearest.size - max(started))
        sent = nearest.sent if nearest.size == nbytes else None
        # A rank that codes faster waits longer, so time on the link is the rest of the time on the slowest rank.
        coded = min(max(coding), rest)
        return Cost(started, rest - coded, coded, min(cpu, rest), sent, nearest.vnmse)

    def _sweep(self, kind: Kind, codec: str, ranks: tuple[Rank, ...]) -> Sweep:
        found = self._probes.find(kind, codec, ranks=ranks)
        if found is None:
            raise NotBuckets(f"{_MEASURED[kind]} {codec} was not measured")
        return found


def costs_of(compressible: Compressible, codecs: Mapping[int, str] | str) -> list[Cost | None]:
    """Cost of each bucket with one codec for all or one per bucket; None for the codec `none`. Raises NotBuckets."""
    found: list[Cost | None] = []
    for number, bucket in enumerate(compressible.buckets):
        codec = codecs if isinstance(codecs, str) else codecs.get(number, "none")
        found.append(None if codec == "none" else compressible.costs.cost(codec, bucket.nbytes))
    return found


def _filled(dfg: Dfg, one: BackwardPass) -> tuple[Sized, ...]:
    """The buckets of a pass, derived from the bytes that their all-reduces sent."""
    sizes, found, first = one.sizes, list[Sized](), 0
    behind_of = {held: number for number, held in enumerate(accumulate(sizes), start=1)}
    held = 0
    for all_reduce in one.all_reduces:
        held += int(dfg.bytes[all_reduce])
        if held not in behind_of:
            raise NotBuckets("its all-reduces do not hold whole gradients")
        behind = behind_of[held]
        found.append(Sized(int(dfg.bytes[all_reduce]), tuple(size // _ITEM for size in sizes[first:behind])))
        first = behind
    return tuple(found)


_ITEM = 4


_MEASURED = {
    "exchange": "an exchange by",
    "begin": "coding before communication by",
    "coding": "coding during communication by",
    "shards": "a reduce-scatter whose gradients travel as",
    "narrow": "making gradients",
    "add": "adding gradients that came as",
}


def _encode_name(number: int) -> str:
    return f"encode gradient bucket {number}"


def _decode_name(number: int) -> str:
    return f"decode gradient bucket {number}"


def _add_decode(
    overlay: Overlay, one: BackwardPass, number: int, all_reduce: int, lane: int, before: int | None
) -> int:
    """Add the node that decodes a bucket, after its communication and after decoding the previous bucket.

    Nodes outside communication threads that waited for the communication now wait for the decoding.
    """
    dfg = overlay.dfg
    done = int(dfg.recorded_ns[all_reduce] + dfg.dur_ns[all_reduce])
    decode = overlay.add(lane, _decode_name(number), Cls.CPU, 0, done, step=one.step)
    overlay.link(all_reduce, decode, Edge.THREAD)
    if before is not None:
        overlay.link(before, decode, Edge.LANE)
    for edge in np.flatnonzero((dfg.pred_idx == all_reduce) & ~dfg.on(LaneKind.COMM)[dfg.pred_target]).tolist():
        overlay.cut[edge] = True
        overlay.link(decode, int(dfg.pred_target[edge]), Edge(dfg.pred_kind[edge]), int(dfg.pred_lag[edge]))
    return decode


def _add_encode(overlay: Overlay, one: BackwardPass, number: int, piece: int, arrival: int) -> None:
    """Add the node that encodes a bucket after the node that completes it; later nodes on its lane wait for it."""
    dfg = overlay.dfg
    (tie,) = one.ready[piece]
    done = int(dfg.recorded_ns[tie.node] + dfg.dur_ns[tie.node])
    encode = overlay.add(int(dfg.lane[tie.node]), _encode_name(number), Cls.CPU, 0, done, step=one.step)
    overlay.link(tie.node, encode, Edge.LANE)
    overlay.link(encode, arrival, tie.kind, tie.lag_ns)
    for edge in np.flatnonzero((dfg.pred_idx == tie.node) & (dfg.pred_kind == Edge.LANE)).tolist():
        overlay.cut[edge] = True
        overlay.link(encode, int(dfg.pred_target[edge]), Edge.LANE, int(dfg.pred_lag[edge]))
