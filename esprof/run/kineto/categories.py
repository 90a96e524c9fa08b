"""Categories of trace events: their kinds in the event table, and the devices that they tell of."""

import re

import numpy as np

from esprof.core.text import printable
from esprof.run.kineto.rows import Texts
from esprof.run.run import RunWarning

_KIND_OF = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "annotation",
    "kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "hpu_op": "runtime",
    "python_function": "python",
}
_KIND_OF_ENDING = (
    (re.compile(r"(^|_)(runtime|driver)$"), "runtime"),
    (re.compile(r"(^|_)memcpy$"), "memcpy"),
    (re.compile(r"(^|_)memset$"), "memset"),
    (re.compile(r"^(cuda|xpu|gcu)_sync$"), "sync"),
)
"""Calls, copies and fills, whose category begins with the device: `cuda_runtime`, `xpu_driver`, `gpu_memcpy`."""

_OTHER_DEVICES = {
    "xpu": "Intel XPU",
    "mtia": "Meta MTIA",
    "hpu": "Intel Gaudi (HPU)",
    "glow": "Glow",
    "mlu": "Cambricon MLU",
    "gcu": "Enflame GCU",
    "ascend": "Huawei Ascend",
    "privateuse1": "an out-of-tree device (PrivateUse1)",
}
_REDUNDANT = frozenset(
    [
        "trace",
        "overhead",
        "metadata",
        "gpu_user_annotation",
        "mlu_user_annotation",
        "gcu_user_annotation",
        "ac2g",
        "fwdbwd",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
        "external_correlation",
        "cpu_instant_event",
        "cuda_event",
        "collective_comm",
        "mtia_insight",
        "mtia_counters",
        "cuda_profiler_range",
        "xpu_scope_profiler",
        "mlu_notifier",
    ]
)
"""Categories whose events repeat others, or are counters and marks."""

ESPROF = "esprof,"
"""Begins the categories of what `esprof export` adds to the events of the profiler."""


def kind_of(category: str) -> str | None:
    """The kind of the events of a category (`schema.KINDS`); None for events that are not read."""
    category = category.lower()
    ending = (kind for pattern, kind in _KIND_OF_ENDING if pattern.search(category))
    return _KIND_OF.get(category) or next(ending, None)


def other_devices(categories: Texts) -> tuple[RunWarning, ...]:
    """A warning for each device that is neither NVIDIA's nor AMD's: only its work and launches are understood."""
    found = {_OTHER_DEVICES.get(one.lower().split("_")[0]) for one in categories.values}
    text = (
        "is read as a plain device: work in order of its streams, and launches; waits of the host for it are not known"
    )
    return tuple(RunWarning("plain-device", f"{name} {text}") for name in sorted(filter(None, found)))


def unread(categories: Texts) -> tuple[RunWarning, ...]:
    """A warning with the number of events of categories that are not known."""
    counts = np.bincount(categories.codes + 1, minlength=len(categories.values) + 1)
    names = ["", *categories.values]
    lost = {
        name: int(count)
        for name, count in zip(names, counts, strict=True)
        if count and kind_of(name) is None and name.lower() not in _REDUNDANT and not name.startswith(ESPROF)
    }
    if not lost:
        return ()
    largest = sorted(lost, key=lambda name: (-lost[name], name))[:3]
    shown = ", ".join(
        f"{lost[name]} {printable(name, 40)!r}" if name else f"{lost[name]} without one" for name in largest
    )
    text = f"{sum(lost.values())} events of unknown categories are not read ({shown})"
    return (RunWarning("events-not-read", text),)
