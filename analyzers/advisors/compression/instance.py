"""Published instances of gradient compression: tensors, the times at which they are ready, and the costs of compression.

The cost model is that of Espresso's simulator (EuroSys 2023, its artifact), with compression on the GPU alone: machines with
several GPUs, and one channel that sends one tensor at a time. The simulator drops whole milliseconds of the times between
tensors; `as_shipped` reproduces that.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from esprof.analyzers.advisors.compression.search import GapKind, search
from esprof.analyzers.advisors.compression.timeline import BucketTimeline, Costs
from esprof.core.disk import read_given
from esprof.core.errors import InputError
from esprof.core.types import NOT_DECODED, NS_PER_US
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind, StepMarks
from esprof.replay.engine.timeline import replay

SCHEMA = "esprof.compression-instance/1"

OPTIONS = (
    "32-bit floats",
    "16-bit floats",
    "16-bit floats within a machine, compressed between machines",
    "compressed within machines and between them",
)
"""Format in which each option sends a gradient."""

_COSTS_FILE = "compression_costs.json"
_ITEM = 4
"""Bytes of an element."""
_KB = 1000
_MODULO_US = 1000.0

_PUBLISHED = {
    "vgg16": ("randomk", (0, 1, 2, 3)),
    "lstm": ("efsignsgd", (0, 1, 2, 3)),
    "bert": ("randomk", (0, 1, 2)),
    "resnet101": ("dgc", (0, 1, 2, 3)),
}
"""Model -> its published compressor and options."""

_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Tensor(msgspec.Struct, frozen=True):
    """A gradient."""

    name: str
    numel: _Count


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A model's tensors in the order in which they become ready. Omitted fields are as published for `model`."""

    model: str
    tensors: Annotated[tuple[Tensor, ...], msgspec.Meta(min_length=1, max_length=100_000)]
    ready_gap_us: tuple[_Time, ...]
    """Time from the previous tensor's readiness to this one's, us."""
    compressor: str | None = None
    options: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=3)], ...], msgspec.Meta(min_length=1)] | None = None
    """Positions in `OPTIONS`."""
    beta1_us_per_kb: _Time | None = None
    """Time of 1000 bytes within a machine, us."""


class _Compressor(msgspec.Struct, frozen=True):
    """GPU time of a compressor for a shard by option, us, and its ratio of sent to original bytes."""

    total_us: tuple[_Time, _Time, _Time, _Time]
    decode_us: tuple[_Time, _Time, _Time, _Time]
    wire_ratio: Annotated[float, msgspec.Meta(gt=0)]


class _Channel(msgspec.Struct, frozen=True, rename={"beta1": "beta1_us_per_kB", "beta2": "beta2_us_per_kB"}):
    alpha_us: _Time
    beta1: dict[str, _Time]
    beta2: _Time
    nodes: _Count
    gpus_per_node: _Count


class _CostTable(msgspec.Struct, frozen=True):
    base_elements: _Count
    gpu_compression: dict[str, _Compressor]
    communication: _Channel


class InstanceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The best choice found."""

    schema: str = SCHEMA
    value_us: float
    """Replayed time from the first tensor's readiness to the last one's synchronisation, us."""
    gap_pct: float
    gap_kind: GapKind
    choices: tuple[int, ...]
    """Option of each tensor, in the order of the file."""


@dataclass(frozen=True)
class Priced:
    """An instance with the costs of each option of each tensor."""

    timeline: BucketTimeline
    sizes: np.ndarray
    """Elements of each tensor."""
    options: tuple[int, ...]

    def replayed_ns(self, choice: np.ndarray) -> int:
        """Replayed duration of a choice (positions in `options`), ns."""
        return int(replay(graph(self.timeline.costs, choice)).step_ns()[0])


def solve(path: Path, *, as_shipped: bool) -> InstanceAnswer:
    """Find the best choice for the instance in a file. Raises InputError."""
    priced = load(path, as_shipped=as_shipped)
    found = search(priced.timeline, priced.sizes)
    return InstanceAnswer(
        value_us=priced.replayed_ns(found.choice) / NS_PER_US,
        gap_pct=round(100 * found.gap, 6),
        gap_kind=found.kind,
        choices=tuple(priced.options[option] for option in found.choice.tolist()),
    )


def load(path: Path, *, as_shipped: bool = False) -> Priced:
    """Read the instance of a file, with costs from the cost file in the same folder. Raises InputError."""
    instance, table = _read(path, Instance), _read(path.parent / _COSTS_FILE, _CostTable)
    compressor, options = _PUBLISHED.get(instance.model, (None, None))
    compressor, options = instance.compressor or compressor, instance.options or options
    if compressor is None or options is None:
        raise InputError(
            f"model {instance.model!r} is not a published one ({', '.join(_PUBLISHED)})",
            path=path,
            remedy='Let the file state "compressor" and "options".',
        )
    if compressor not in table.gpu_compression:
        raise InputError(
            f"the costs of compressor {compressor!r} are unknown; known are those of {', '.join(table.gpu_compression)}",
            path=path,
        )
    if len(instance.ready_gap_us) != len(instance.tensors):
        raise InputError(
            f"has {len(instance.tensors)} tensors and {len(instance.ready_gap_us)} times between them", path=path
        )
    beta1 = table.communication.beta1.get("pcie") if instance.beta1_us_per_kb is None else instance.beta1_us_per_kb
    if beta1 is None:
        raise InputError("states no beta1_us_per_kb, and the costs have none for PCIe", path=path)
    gaps = np.array(instance.ready_gap_us)
    if as_shipped:
        gaps = gaps % _MODULO_US
    sizes = np.array([tensor.numel for tensor in instance.tensors], np.int64)
    stall, link = _option_costs(sizes, table, table.gpu_compression[compressor], beta1)
    chosen = list(options)
    nothing = np.zeros((len(sizes), len(chosen)))
    ready = np.rint(np.cumsum(gaps) * NS_PER_US)
    # Replay has whole nanoseconds.
    stall, link = (np.rint(column[:, chosen] * NS_PER_US) for column in (stall, link))
    costs = Costs(ready, stall, nothing, link, nothing.copy(), float(ready[-1]), nothing, np.inf)
    return Priced(BucketTimeline(costs), sizes, options)


def _option_costs(
    sizes: np.ndarray, table: _CostTable, compressor: _Compressor, beta1: float
) -> tuple[np.ndarray, np.ndarray]:
    """(time on the computing stream, time on the channel) of each option, us, float64[N, 4] each.

    The compression of options 2 and 3 counts on both, as in the published program.
    """
    channel = table.communication
    nodes, gpus, ratio = channel.nodes, channel.gpus_per_node, compressor.wire_ratio
    inside, between = 2 * (gpus - 1) / gpus, 2 * (nodes - 1) / nodes
    nbytes = _ITEM * sizes.astype(float)

    def sent_us(steps: int, intra: np.ndarray, inter: np.ndarray) -> np.ndarray:
        took: np.ndarray = (
            steps * channel.alpha_us + beta1 * np.floor(intra / _KB) + channel.beta2 * np.floor(inter / _KB)
        )
        return took

    link = np.stack(
        [
            sent_us(2, inside * nbytes, between * nbytes),
            sent_us(2, inside * nbytes / 2, between * nbytes / 2),
            sent_us(2, inside * nbytes / 2, between * nbytes * ratio),
            sent_us(4, inside * nbytes * ratio, between * nbytes * ratio),
        ],
        axis=1,
    )
    total, decode = np.array(compressor.total_us), np.array(compressor.decode_us)
    scale = np.maximum(1.0, sizes / gpus / table.base_elements)[:, None]
    stall = scale * np.where([False, True, True, True], total - decode, 0.0)
    return stall, link + scale * np.where([False, False, True, True], total, 0.0)


def graph(costs: Costs, choice: np.ndarray) -> Dfg:
    """The dataflow graph of an instance with a choice.

    Its lanes are a stream that computes and compresses, the host, the channel, and work concurrent with computation. Its
    only step lasts from time 0 until all is computed and synchronised.
    """
    picked = [column[np.arange(len(choice)), choice] for column in (costs.stall, costs.host, costs.link, costs.after)]
    compute = np.diff(costs.ready, prepend=0.0)
    count, kinds = len(choice), 5
    # One row per tensor: computed, compressed, compressed on the host, sent, and unpacked.
    dur = np.stack([compute, *picked], axis=1)
    lanes = np.tile([0, 0, 1, 2, 3], (count, 1))
    first, node = 1, 1 + np.arange(count * kinds).reshape(count, kinds)
    last = 1 + count * kinds
    lane = np.concatenate([[0], lanes.ravel(), [0, 0]])
    dur_ns = np.rint(np.concatenate([[0], dur.ravel(), [costs.computed - costs.ready[-1], 0]])).astype(np.int64)
    # Each node depends on the previous one in its row, and on its lane's node of the previous tensor.
    pairs = [(node[:, :-1].ravel(), node[:, 1:].ravel())]
    pairs += [(node[:-1, before], node[1:, after]) for before, after in ((1, 0), (2, 2), (3, 3), (4, 4))]
    source, target = (np.concatenate([pair[end] for pair in pairs]).tolist() for end in (0, 1))
    ends = [(0, first), (int(node[-1, 1]), last), (last, last + 1), (int(node[-1, 4]), last + 1)]
    edges = [*zip(source, target, strict=True), *ends]
    return _dfg(lane, dur_ns, sorted((to, start) for start, to in edges))


def _dfg(lane: np.ndarray, dur_ns: np.ndarray, edges: list[tuple[int, int]]) -> Dfg:
    """A graph of one rank and step, from its nodes in order and its sorted edges (target, source)."""
    nodes = len(lane)
    target = np.array([edge[0] for edge in edges])
    cls = np.array([Cls.COMPUTE, Cls.CPU, Cls.COMMUNICATION, Cls.CPU], np.int8)
    kinds = (LaneKind.STREAM, LaneKind.CPU, LaneKind.COMM, LaneKind.COMM)
    roles = ("compute", "host", "link", "unpack")
    none = np.full(nodes, -1, np.int32)
    return Dfg(
        t0_ns=0,
        dur_ns=dur_ns,
        recorded_ns=np.zeros(nodes, np.int64),
        residual_ns=np.zeros(nodes, np.int64),
        contended=np.zeros(nodes, bool),
        lane=lane.astype(np.int32),
        step=np.zeros(nodes, np.int32),
        cls=cls[lane],
        name=lane.astype(np.int32),
        event=none,
        collective=none,
        bytes=np.full(nodes, -1, np.int64),
        key=none,
        pred_ptr=np.searchsorted(target, np.arange(nodes + 1)).astype(np.int32),
        pred_idx=np.array([edge[1] for edge in edges], np.int32),
        pred_lag=np.zeros(len(edges), np.int32),
        pred_kind=np.full(len(edges), Edge.WAIT, np.int8),
        names=roles,
        lanes=tuple(Lane(0, kind, role) for kind, role in zip(kinds, roles, strict=True)),
        marks=StepMarks((0,), (0,), np.array([[0]]), np.array([[nodes - 1]])),
    )


_Content = TypeVar("_Content")


def _read(path: Path, kind: type[_Content]) -> _Content:
    """Raises InputError."""
    try:
        return msgspec.json.decode(read_given(path, "an instance"), type=kind)
    except NOT_DECODED as error:
        raise InputError(f"is not an instance of gradient compression: {error}", path=path) from error
