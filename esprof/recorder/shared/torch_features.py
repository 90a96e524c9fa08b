"""Features that differ between versions of torch: the only module that handles the differences.

Features are detected by their names, never by the version number. esprof needs torch 2.6 or newer.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Dump = Callable[[bool, bool], bytes]
"""(include calls, include their stacks) -> dump of a Flight Recorder, JSON."""

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions that dump a Flight Recorder: the one for all backends, which the oldest versions lack, and the one for NCCL,
which builds without CUDA lack."""

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables for the number of collectives that a Flight Recorder stores; the second is the older name, for NCCL."""

_STORED_CALLS = "2000"
"""Default of newer versions. In 2.8 and 2.9 the default is 0."""

annotation: Callable[[str], Any] = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
"""A context that the profiler records under the name given; the fast kind where torch has it, a fifth of the cost."""


def profiler_config(**options: bool) -> Any:
    """The profiler's experimental configuration with those `options` that this torch supports."""
    config: Any = torch._C._profiler._ExperimentalConfig
    return config(**{name: value for name, value in options.items() if _takes(config, name)})


def flight_dumps() -> list[Dump]:
    """Functions that dump PyTorch's Flight Recorders, the one for all backends first; empty if torch has none."""
    if not dist.is_available():
        return []
    from torch._C import _distributed_c10d as c10d

    return [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]


def dump_collectives(*, include_calls: bool) -> list[bytes]:
    """Dump the collectives of this process from each of PyTorch's Flight Recorders as JSON, the one for all backends first.
    Empty without a process group.

    A call has its process group, its number in the group, its operation and sizes, and when it was enqueued; calls of NCCL
    also have their start and end. A dump holds the latest TORCH_FR_BUFFER_SIZE (2000) calls; without `include_calls` it
    holds only the progress of each process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    return [dump(include_calls, False) for dump in flight_dumps()]


def switch_on_flight_recorders() -> None:
    """Enable the Flight Recorders, as newer versions do by default. Call it before the first process group is created."""
    newer, older = _BUFFER_SIZES
    if newer not in os.environ and older not in os.environ:
        # A torch that knows the newer name warns about the older one.
        of_all = any(dump.__name__ == _DUMPS[0] for dump in flight_dumps())
        os.environ[newer if of_all else older] = _STORED_CALLS


def is_profiled_here() -> bool:
    """Whether a profiler records the operations of this thread."""
    return bool(torch._C._autograd._profiler_enabled())


def hide_from_dynamo(function: Any, *, with_callees: bool = False) -> None:
    """Make a compiled training step call `function` without tracing into it, like the function that it replaces.

    What `function` calls is compiled as it would be without it; `with_callees`, it is not either, where torch can do that.
    """
    if with_callees:
        function._torchdynamo_disable = True
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        skipped = frames._FrameExecStrategy(action.SKIP, action.SKIP if with_callees else action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skipped)
    else:  # Before 2.7.
        frames.skip_code(function.__code__)


def all_gather(out: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
    """Start gathering `mine` from all ranks of `group` into `out`, in rank order. Returns the work to wait for."""
    # Newer versions deprecate the older name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, mine, group, async_op=True)


def reduce_scatter(out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
    """Start summing `source` over all ranks of `group`; `out` gets this rank's shard. Returns the work to wait for."""
    # Newer versions deprecate the older name.
    reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return reduce(out, source, group=group, async_op=True)


def own_client(store: Any) -> Any:
    """A client of the same store with a separate connection, for a thread that blocks while other threads use the store."""
    if hasattr(store, "clone"):
        return store.clone()
    from torch._C import _distributed_c10d as c10d

    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    if isinstance(store, c10d.TCPStore):
        return c10d.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return store  # A store in memory or in a file has no connection.


def precision_settings() -> dict[str, str | bool | None]:
    """Backend and operation -> its float32 precision, such as `ieee` or `tf32`; None if this torch does not report it."""
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    accumulation = {"cuda_matmul_fp16_accumulation": getattr(matmul, "allow_fp16_accumulation", None)}
    if hasattr(matmul, "fp32_precision"):
        return accumulation | {
            "cuda_matmul_precision": matmul.fp32_precision,
            "cudnn_conv_precision": backends.cudnn.conv.fp32_precision,
            "cudnn_rnn_precision": backends.cudnn.rnn.fp32_precision,
            "mkldnn_matmul_precision": backends.mkldnn.matmul.fp32_precision,
            "mkldnn_conv_precision": backends.mkldnn.conv.fp32_precision,
        }
    cudnn = "tf32" if backends.cudnn.allow_tf32 else "ieee"
    return accumulation | {
        "cuda_matmul_precision": "tf32" if matmul.allow_tf32 else "ieee",
        "cudnn_conv_precision": cudnn,
        "cudnn_rnn_precision": cudnn,
        "mkldnn_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn_conv_precision": None,
    }


def lacking() -> list[str]:
    """Limitations of a recording with this torch compared with a newer one, one sentence each."""
    config = torch._C._profiler._ExperimentalConfig
    found = []
    if dist.is_available() and not any(dump.__name__ == _DUMPS[0] for dump in flight_dumps()):
        found.append("it has no flight recorder for gloo: sizes and numbers of gloo's collectives are unknown")
    if not _takes(config, "trace_only"):
        found.append("its profiler cannot leave out its own list of events: closing a window takes longer")
    return found


def _takes(config: Any, option: str) -> bool:
    try:
        config(**{option: True})
    except TypeError:
        return False
    return True
