"""Timelines with hashes in the place of names, so that an export can be shared."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.analyzers.tracks.recorded import BATCH, STAGE
from esprof.analyzers.tracks.track import Slices, TrackProcess
from esprof.run.collective_names import ITEM_BYTES, collective_word

_KIND = {
    "cpu_op": "op",
    "cuda_runtime": "call",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_sync": "sync",
    "python_function": "frame",
    "user_annotation": "mark",
    "gpu_user_annotation": "mark",
    STAGE: "stage",
}
"""Category of a slice -> first word of its new name; `node` for nodes of the graph."""

_STEP = re.compile(r"(?:ProfilerStep|esprof\.step)#\s*\d{1,9}|step \d+")
"""Names of steps, which stay."""

_SHAPES = re.compile(r"[\d\s,\[\]]*")

_TERM = r"(?:(?:rank[\d+-]+\.)?[a-z_.]+=(?:[\d.]+x?|fix|perfect)|compress=[a-z0-9]+(?::[\d.]+)?)"
_SCENARIO = re.compile(rf"{_TERM}(?:,\s*{_TERM})*")
"""Scenarios without a name of the job, which stay: no regular expression, no device, no file."""


def redacted_title(scenario: str) -> str:
    """The title of the timeline of a scenario."""
    return scenario if _SCENARIO.fullmatch(scenario) else hashed("what-if", scenario)


def redacted(process: TrackProcess) -> TrackProcess:
    """The process with hashes for names, and without host and device."""
    tracks = [replace(track, slices=_redacted_slices(track.slices)) for track in process.tracks]
    return replace(process, about="", tracks=tracks)


def _redacted_slices(slices: Slices) -> Slices:
    # One new name for each pair of name and category that occurs.
    pair = slices.name.astype(np.int64) * len(slices.categories) + slices.category
    pairs, name = np.unique(pair, return_inverse=True)
    names = []
    for code in pairs.tolist():
        old, category = slices.names[code // len(slices.categories)], slices.categories[code % len(slices.categories)]
        stays = category == BATCH or _STEP.fullmatch(old)
        names.append(old if stays else hashed(_KIND.get(category, "node"), old))
    return replace(slices, name=name.reshape(-1), names=names, args=_redacted_args(slices.args))


def _redacted_args(args: Mapping[str, Sequence[int | str | None]]) -> Mapping[str, Sequence[int | str | None]]:
    rules: dict[str, Callable[[str], str | None]] = {
        "Process Group Name": _group,
        "Collective name": collective_word,
        "dtype": _dtype,
        "Input Dims": _shapes,
        "lane": str,  # Roles of threads and numbers of streams.
    }
    return {
        key: [rules.get(key, _nothing)(value) if isinstance(value, str) else value for value in values]
        for key, values in args.items()
    }


def _nothing(text: str) -> None:
    """Text without a rule may be a name of the job."""


def _group(name: str) -> str:
    return hashed("group", name)


def _dtype(name: str) -> str | None:
    return name if name.lower() in ITEM_BYTES else None


def _shapes(shapes: str) -> str | None:
    return shapes if _SHAPES.fullmatch(shapes) else None
