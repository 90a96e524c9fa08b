"""Data that a run lacks, and what is unknown without it."""

from collections.abc import Callable, Iterator

import msgspec

FLIGHT, PLAIN_STEPS, PROBE, SHAPES = "flight", "plain", "probe", "shapes"
"""Data that is no table of a Run directory."""

_DATA = {
    SHAPES: (
        "input shapes",
        "the what-ifs bucket_mb= and compress=, the model FLOP utilisation, and `esprof ops --by-shape`",
        "Use `esprof record --shapes`, or record_shapes=True of torch.profiler.",
    ),
    PLAIN_STEPS: (
        "steps without the profiler",
        "the overhead of the profiler, the step time without it, and `esprof check` on plain steps",
        "Let the job run longer than the window of `esprof record`.",
    ),
    "stages": (
        "DataLoaders",
        "the what-ifs loader.workers=, loader.prefetch=, storage=, decode= and cache=; ESP102 to ESP111",
        "`esprof record` records them if the job has any.",
    ),
    "accesses": ("sample keys", "the what-if order=, and counted hits in cache=", "Use `esprof record --sample-keys`."),
    "allocations": (
        "allocations",
        "the peak memory of `esprof replay`, and of the what-ifs batch=, recompute=, zero= and pipeline=",
        "Use `esprof record --memory`.",
    ),
    "modules": (
        "sizes of modules",
        "`esprof recommend --only parallel`",
        "`esprof record` records them if the model is not compiled.",
    ),
    "memory": ("memory", "memory over the step; ESP502 and ESP503", "`esprof record` records it."),
    "samples": ("sampled stacks", "`esprof ops --flame`, and lines of code in findings", "`esprof record` takes them."),
    "stacks": (
        "a window with stacks",
        "the what-if python[REGEX]=0; ESP402",
        "`esprof record` takes one unless --stack-steps is 0.",
    ),
    FLIGHT: ("flight records", "the causes of hangs and crashes (ESP801 to ESP805)", "`esprof record` writes them."),
    PROBE: (
        "a probe",
        "the what-if compress=, and narrower intervals of network= and bucket_mb=",
        "Use `esprof probe`, or `esprof record --probe`.",
    ),
}
"""Name of the data, of a table its own -> (the data in words, what needs it, how to record it)."""


class Unrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Data that no rank has, though jobs like this one may have it."""

    data: str
    needed_for: str
    remedy: str


def unrecorded(is_recorded: Callable[[str], bool]) -> Iterator[Unrecorded]:
    """The data that was not recorded; `is_recorded` tells it of each key of `_DATA`."""
    for name, (data, needed_for, remedy) in _DATA.items():
        if not is_recorded(name):
            yield Unrecorded(data=data, needed_for=needed_for, remedy=remedy)
