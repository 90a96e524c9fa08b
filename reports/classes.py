"""Name and colour of each class of time, the same in every chart and table.

The colours are distinguishable under the three common kinds of colour blindness, on a white and on a dark page.
"""

import msgspec


class TimeClass(msgspec.Struct, frozen=True):
    """The style of one class of time. `ink` is a readable text colour on `colour`."""

    label: str
    colour: str
    ink: str
    meaning: str


_DARK, _LIGHT = "#14181f", "#ffffff"
_COMPUTE = TimeClass("compute", "#2b7bba", _LIGHT, "the device computes")
_COMMUNICATION = TimeClass("communication", "#63bdea", _DARK, "communication that no compute overlaps")
_COPY = TimeClass("copy", "#1d3557", _LIGHT, "a copy between host and device that nothing overlaps")
_WAIT = TimeClass("peer wait", "#d55e2b", _DARK, "waiting for a peer at a collective")
_DATA = TimeClass("input stall", "#f2c230", _DARK, "waiting for the next batch")
_HOST = TimeClass("host", "#c06a9f", _DARK, "the CPU works while the device is idle")
_IDLE = TimeClass("idle", "#bfc6ce", _DARK, "none of these")

CLASSES = {
    "compute": _COMPUTE,
    "exposed_communication": _COMMUNICATION,
    "communication": _COMMUNICATION,
    "copy": _COPY,
    "wait": _WAIT,
    "input_stall": _DATA,
    "data": _DATA,
    "host": _HOST,
    "cpu": _HOST,
    "idle": _IDLE,
    "host_gap": TimeClass("host gap", "#ecc9de", _DARK, "the CPU runs code that was not recorded"),
    "launch": TimeClass("launch", "#1b9e77", _DARK, "from the launch of a kernel to its start"),
    "allocator": TimeClass("allocator", "#8a5a2f", _LIGHT, "allocating or freeing device memory"),
    "contention": TimeClass("contention", "#5b3f9b", _LIGHT, "a kernel waits for a busy device"),
}
"""Keys: the names in `analyzers.finding.ACTIVITIES`, and the classes of the critical path."""

ORIGINS = {
    "job": TimeClass("the job's own code", "#e58a5f", _DARK, "code in the working directory of the job"),
    "torch": TimeClass("PyTorch", "#63bdea", _DARK, "Python code of PyTorch"),
    "other": TimeClass(
        "Python and packages", "#bfc6ce", _DARK, "built-in functions, the standard library, other packages"
    ),
}
"""Origin of the code of a function. Keys: `analyzers.frames.Origin`."""

CRITICAL_PATH = TimeClass("critical path", "#14181f", _LIGHT, "the longest chain of dependent work")
RELEASE = TimeClass("wait ends", "#bd3b1b", _LIGHT, "the last rank arrives at a collective, and another stops waiting")

_RESIDUAL = TimeClass("unexplained", "#525c69", _LIGHT, "no recorded cause")


def time_class(name: str) -> TimeClass:
    """The style of the class `name`; `unexplained` for an unknown name."""
    return CLASSES.get(name, _RESIDUAL)
