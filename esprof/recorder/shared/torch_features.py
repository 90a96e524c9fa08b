"""What this torch offers of the things that its versions do not share: the one place that knows how they differ.

What is there is found by looking for it, never told by the version. esprof needs torch 2.6 or newer.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Dump = Callable[[bool, bool], bytes]
"""Dumps a flight recorder as JSON: (with the calls, with their stacks)."""

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions that dump a Flight Recorder: that of all backends, which the oldest versions lack, and NCCL's, which builds
without CUDA lack."""

_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables that tell how many collectives a Flight Recorder remembers; the second is the older name, of NCCL's."""

_REMEMBERED_CALLS = "2000"
"""What newer versions take by default. In 2.8 and 2.9 it is 0."""


def profiler_config(**wished: bool) -> Any:
    """The profiler's experimental options, as far as this torch knows those that are wished for."""
    config: Any = torch._C._profiler._ExperimentalConfig
    return config(**{name: value for name, value in wished.items() if _takes(config, name)})


def flight_dumps() -> list[Dump]:
    """What dumps PyTorch's own Flight Recorders, that of all backends first; empty where torch has none."""
    if not dist.is_available():
        return []
    from torch._C import _distributed_c10d as c10d

    return [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]


def dump_collectives(*, include_calls: bool) -> list[bytes]:
    """What each of PyTorch's Flight Recorders has of this process's collectives, as JSON, that of all
    backends first; none where there is no process group.

    A call names the process group, the number in it, the operation, its sizes, and when it was enqueued; NCCL's calls also
    tell when they started and ended. A dump has the latest TORCH_FR_BUFFER_SIZE (2000) calls; without `include_calls` it
    has none, and tells how far each process group has come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    return [dump(include_calls, False) for dump in flight_dumps()]


def switch_on_flight_recorders() -> None:
    """Have this process's collectives remembered, as newer versions do unasked; before its first process group is made."""
    newer, older = _BUFFER_SIZES
    if newer not in os.environ and older not in os.environ:
        # Where torch knows the newer name, it warns of the older one.
        of_all = any(dump.__name__ == _DUMPS[0] for dump in flight_dumps())
        os.environ[newer if of_all else older] = _REMEMBERED_CALLS


def hide_from_dynamo(function: Any) -> None:
    """Let a compiled training step call `function` without tracing into it, as it calls what `function` replaces."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skipped)
    else:  # Before 2.7.
        frames.skip_code(function.__code__)


def all_gather(out: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
    """Start to gather `mine` of all ranks of `group` in `out`, in their order; returns the work to wait for."""
    # Newer versions deprecate the older name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, mine, group, async_op=True)


def reduce_scatter(out: torch.Tensor, parts: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
    """Start to add up `parts` of all ranks of `group`, each rank's own in `out`; returns the work to wait for."""
    # Newer versions deprecate the older name.
    reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return reduce(out, parts, group=group, async_op=True)


def own_client(store: Any) -> Any:
    """A client of the same store with a connection of its own, for a thread that waits while others go on."""
    if hasattr(store, "clone"):
        return store.clone()
    from torch._C import _distributed_c10d as c10d

    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    if isinstance(store, c10d.TCPStore):
        return c10d.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return store  # A store in memory or in a file has no connection.


def precision_settings() -> dict[str, str | bool | None]:
    """How exactly matrix products and convolutions are computed, by where: `ieee`, `tf32` and the like of float32; None
    where this torch does not say."""
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
    """What a Run made with this torch cannot tell, or costs more than with a newer one, in a sentence each."""
    config = torch._C._profiler._ExperimentalConfig
    found = []
    if dist.is_available() and not any(dump.__name__ == _DUMPS[0] for dump in flight_dumps()):
        found.append("it has no flight recorder for gloo: sizes and numbers of gloo's collectives are not known")
    if not _takes(config, "trace_only"):
        found.append("its profiler cannot leave out its own list of events: closing a window takes longer")
    return found


def _takes(config: Any, option: str) -> bool:
    try:
        config(**{option: True})
    except TypeError:
        return False
    return True
