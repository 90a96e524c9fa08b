"""Traits of GPU runtime calls and copies, by their names."""

import re
from functools import cache

import numpy as np

_ALLOCATES = re.compile(r"^(malloc|free|hostalloc|hostmalloc|hostfree|mem(create|map|unmap|release))")
_SYNCHRONIZES = re.compile(r"synchronize$|^memcpy(dtoh|htod|dtod)?(_v2)?$")
_HIDES_WAIT = re.compile(r"^(eventelapsedtime|free)$")
_LAUNCHES = re.compile(r"launchkernel|graphlaunch")
_BETWEEN_HOST_AND_DEVICE = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost")
_VENDOR = re.compile(r"^(cuda|hip|cu)")

CALL_TRAITS = np.dtype(
    [
        ("allocates", np.bool_),
        ("synchronizes", np.bool_),
        ("copies", np.bool_),
        ("frees", np.bool_),
        ("whole_device", np.bool_),  # concerns all streams
        ("whole_stream", np.bool_),  # concerns all that a stream was given
        ("one_event", np.bool_),  # concerns what was given before an event was recorded
        ("hides_wait", np.bool_),  # the profiler leaves out waits before it
        ("launches", np.bool_),  # a kernel or a CUDA graph
        ("records_event", np.bool_),
        ("makes_stream_wait", np.bool_),  # lets a stream wait for an event
    ]
)
"""Traits of a GPU runtime call, one flag each."""


@cache
def call_traits(runtime: str) -> tuple[bool, ...]:
    """The CALL_TRAITS of a runtime call, by its name."""
    name = _without_vendor(runtime)
    return (
        bool(_ALLOCATES.match(name)),
        bool(_SYNCHRONIZES.search(name)),
        name.startswith("memcpy"),
        name == "free",
        "device" in name,
        name.startswith("streamsynchronize"),
        name.startswith("eventsynchronize"),
        bool(_HIDES_WAIT.match(name)),
        bool(_LAUNCHES.search(name)),
        name.startswith("eventrecord"),
        name.endswith("streamwaitevent"),
    )


def allocates(runtime: str) -> bool:
    """Whether a runtime call is one by which an allocator asks the driver for memory or gives it back."""
    return bool(_ALLOCATES.match(_without_vendor(runtime)))


def copies_across_bus(work: str) -> bool:
    """Whether work on a GPU is a copy between host and device, by its name: `Memcpy HtoD (Pinned -> Device)`."""
    return bool(_BETWEEN_HOST_AND_DEVICE.search(work))


def _without_vendor(runtime: str) -> str:
    """A runtime call without its vendor: `cudaStreamSynchronize` and `hipStreamSynchronize` are `streamsynchronize`."""
    return _VENDOR.sub("", runtime).lower()
