"""What `esprof ops` answers."""

from typing import Literal

import msgspec

from esprof.core.types import Rank
from esprof.run.run import RunWarning

Sort = Literal["own-gpu", "total-gpu", "own-cpu", "total-cpu", "calls"]

OpKind = Literal["op", "module", "annotation", "runtime", "collective", "loader", "checkpoint"]
"""`op` is an operation of PyTorch, `module` the forward of an `nn.Module`, `annotation` a range that the job marked
(`record_function`), `runtime` a call of the driver (CUDA, ROCm), `collective` a transfer on a CPU thread (gloo), `loader` a
call of a DataLoader's iterator, `checkpoint` a save."""


class RankOp(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one rank, per mean steady step."""

    rank: Rank
    calls: float
    own_cpu_us: float
    total_cpu_us: float
    own_gpu_us: float
    total_gpu_us: float


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """Work on a GPU that an operation launched itself, by name: per mean steady step, the mean of the ranks."""

    name: str
    calls: float
    us: float


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of the inputs that an operation was called with, and how often in a mean steady step; the mean of the ranks."""

    shapes: str
    calls: float


class CallPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the job's own code that an operation was called from."""

    frame: str
    """As `file(line): function`."""
    share_pct: float
    """Share of what is known of the operation's places, by time, in per cent."""


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one name. Times are per mean steady step, the mean of the ranks; they are sums over threads and streams.

    Own CPU time leaves out what is called inside; total CPU time counts a recursive call once. GPU times are those of the
    kernels, copies and fills launched: own ones while nothing else was called inside, total ones by all that is called
    inside, too.
    """

    name: str
    kind: OpKind
    shapes: str | None
    """Shapes of its inputs, where rows are told apart by them and they were recorded."""
    calls: float
    own_cpu_us: float
    total_cpu_us: float
    own_gpu_us: float
    total_gpu_us: float
    share_pct: float
    """Its own time of that of all, on the device by which rows are sorted, in per cent."""
    differs: Rank | None
    """The rank that is furthest from the others by what rows are sorted by; None where none differs much."""
    by_rank: tuple[RankOp, ...]
    kernels: tuple[Kernel, ...]
    """What it launched itself, most time first, at most `over_ranks.MAX_PARTS_NAMED`."""
    kernels_found: int
    inputs: tuple[Shapes, ...]
    """Most frequent first, at most `over_ranks.MAX_PARTS_NAMED`; empty where they were not recorded."""
    inputs_found: int
    places: tuple[CallPlace, ...]
    """Most time first, at most `over_ranks.MAX_PARTS_NAMED`; empty where nothing tells."""


class OpsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Schema `esprof.ops/1`."""

    schema: str = "esprof.ops/1"
    world_size: int
    ranks: tuple[Rank, ...]
    """The ranks that the means are of."""
    missing_ranks: tuple[Rank, ...]
    steps: tuple[int, ...]
    """The steady steps that the means are of."""
    step_us: float
    """Mean duration of these steps on these ranks."""
    has_gpu: bool
    """Whether any of the ranks launched work on a GPU."""
    sort: Sort
    by_shape: bool
    pattern: str | None
    """The pattern that names had to contain."""
    cpu_us: float
    """Own CPU time of all operations, per mean step and rank."""
    gpu_us: float
    """Time of all work on GPUs launched in these steps, per mean step and rank, summed over streams."""
    gpu_outside_us: float
    """The part of it that was launched outside any operation, module or range."""
    shapes_recorded: bool
    found: int
    """Rows that there are; `ops` are the first of them."""
    ops: tuple[Op, ...]
    warnings: tuple[RunWarning, ...]
