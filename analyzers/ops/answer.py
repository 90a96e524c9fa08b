"""Output of `esprof ops`, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.ops.sort import By, Sort
from esprof.analyzers.views.device_peaks import Precision
from esprof.analyzers.views.links import LinkPeak
from esprof.core.step_words import Unit
from esprof.core.types import Bytes, Rank
from esprof.run.run import RunWarning

OpKind = Literal["op", "module", "annotation", "runtime", "collective", "loader", "checkpoint", "kernel"]
"""`op` is an operation of PyTorch, `module` the forward of an `nn.Module`, `annotation` a range that the job marked
(`record_function`), `runtime` a call of the driver (CUDA, ROCm), `collective` a gloo collective on a CPU thread, `loader` a
call of a DataLoader's iterator, `checkpoint` a save, `kernel` GPU work whose launch was not recorded."""


class RankOp(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one rank, per mean steady-state step."""

    rank: Rank
    calls: float
    own_cpu_us: float
    total_cpu_us: float
    own_gpu_us: float
    total_gpu_us: float


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """GPU work of one name that an operation launched itself, per mean steady-state step; the mean over ranks."""

    name: str
    calls: float
    us: float


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """Input shapes of an operation, and its calls with them in a mean steady-state step; the mean over ranks."""

    shapes: str
    calls: float


class CallSite(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the job's own code that an operation was called from."""

    frame: str
    """The line, as `file(line): function`."""
    share_pct: float
    """Share of the operation's time with a known source location, in per cent."""


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one name. Times are means over ranks, per mean steady-state step, summed over threads and streams.

    Own CPU time excludes nested calls; total CPU time counts a recursive call once. GPU times are those of the kernels,
    copies and fills launched: own time counts those launched by the operation itself, total time also those launched by
    nested calls.
    """

    name: str
    kind: OpKind
    shapes: str | None
    """Shapes of its inputs, if rows are separated by shapes and shapes were recorded."""
    calls: float
    own_cpu_us: float
    total_cpu_us: float
    own_gpu_us: float
    total_gpu_us: float
    backward_cpu_us: float
    """Total time of the autograd nodes that the calls made: their backward pass, without the accumulation of gradients."""
    backward_gpu_us: float
    share_pct: float
    """Its share of the own time of all operations, on the device by which rows are sorted, in per cent."""
    differs: Rank | None
    """The rank furthest from the median in the sort column; None if no rank differs much."""
    by_rank: tuple[RankOp, ...]
    kernels: tuple[Kernel, ...]
    """Kernels that it launched itself, most time first, at most `over_ranks.MAX_DETAILS_NAMED`."""
    kernels_found: int
    inputs: tuple[Shapes, ...]
    """Most frequent first, at most `over_ranks.MAX_DETAILS_NAMED`; empty if shapes were not recorded."""
    inputs_found: int
    places: tuple[CallSite, ...]
    """Most time first, at most `over_ranks.MAX_DETAILS_NAMED`; empty if no source location is known."""


WHOLE_SHARE = 0.95
"""Share of the time of multiplying kernels that has to be counted for a figure that is not a lower bound."""


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOP utilisation (MFU) of a mean steady-state step, the mean over ranks.

    Counted are matrix products, convolutions and attention with known shapes, as by torch.utils.flop_counter (a multiply-add
    is two operations; activations that are computed again count again; masks do not). MFU = Σ operations / peak rate of
    their precision / duration of the step (Chowdhery et al., PaLM, 2022, appendix B, with a peak for each precision).
    """

    mfu_pct: float | None
    """None where unknown, with `reason`."""
    reason: str | None
    operations_per_step: float | None
    """Floating-point operations of a rank in a mean step."""
    precisions: dict[Precision, float]
    """Share of these operations by precision, from 0 to 1."""
    counted_share: float
    """Share of the time of multiplying kernels whose operations are counted: below 0.95 the MFU is a lower bound."""

    @property
    def is_lower_bound(self) -> bool:
        return self.counted_share < WHOLE_SHARE


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """GPU work of one implementation of attention, per mean steady-state step and rank."""

    implementation: str
    """`FlashAttention 2`, `cuDNN`, `math`, …: by the names of kernels, else by the operation that launched them."""
    kernels: float
    us: float


class CollectiveRate(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, group and range of sizes. Bandwidths as in nccl-tests (doc/PERFORMANCE.md)."""

    collective: str
    ranks: tuple[Rank, ...]
    """Ranks of the group."""
    smallest: Bytes
    largest: Bytes
    """Sizes: of the larger of input and output on a rank. Ranges are between powers of two."""
    calls: float
    """Calls per mean step and rank."""
    us: float
    """Mean duration of one, without the wait for the last rank if `is_matched`."""
    algorithm_bytes_per_s: float
    """Size / time."""
    bus_bytes_per_s: float
    """Size / time · bytes that each link carries for a byte of the size."""
    peak: LinkPeak | None
    """The highest bus bandwidth of the link; None where unknown."""
    is_matched: bool
    """Whether the calls were matched across ranks. If not, times include waiting, and bandwidths are lower bounds."""

    @property
    def peak_pct(self) -> float | None:
        return None if self.peak is None else 100 * self.bus_bytes_per_s / self.peak.bytes_per_s


class OpsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Schema `esprof.ops/1`."""

    schema: str = "esprof.ops/1"
    world_size: int
    ranks: tuple[Rank, ...]
    """Ranks over which means are taken."""
    missing_ranks: tuple[Rank, ...]
    unit: Unit = "step"
    """What is meant by a step: one of the job; or a block of repeated work, or the window, if no step is marked."""
    steps: tuple[int, ...]
    """Steady-state steps over which means are taken."""
    step_us: float
    """Mean duration of these steps on these ranks."""
    has_gpu: bool
    """Whether any of the ranks launched work on a GPU."""
    sort: Sort
    by: By
    by_shape: bool
    pattern: str | None
    """The pattern that names had to contain."""
    cpu_us: float
    """Own CPU time of all operations, per mean step and rank."""
    gpu_us: float
    """Time of all work on GPUs launched in these steps, per mean step and rank, summed over streams."""
    gpu_outside_us: float
    """The portion of `gpu_us` launched outside any operation, module or range."""
    utilisation: Utilisation | None
    """Model FLOP utilisation of the step; None if no kernel multiplies."""
    attention: tuple[Attention, ...]
    """Implementations of attention whose kernels or operations are known by name, most time first."""
    collectives: tuple[CollectiveRate, ...]
    """Collectives of known kind, group and size, most time first."""
    collectives_unknown: float
    """Share of the time of all collectives whose kind, group or size is unknown, from 0 to 1."""
    shapes_recorded: bool
    modules_recorded: bool
    """Whether calls of modules were recorded: by `esprof record`, or by the profiler with `with_stack=True`."""
    found: int
    """Number of rows; `ops` holds the first of them."""
    ops: tuple[Op, ...]
    warnings: tuple[RunWarning, ...]
