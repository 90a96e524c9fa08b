"""Names of nodes packed into numbers: most combine the names of one or two events, and are spelled out once at the end."""

from enum import IntEnum

import numpy as np

from esprof.replay.building.lookup import numbered
from esprof.replay.dfg import gap_name

CODE_BITS = 30
"""Bits for the number of a text in a packed name, which holds its form, first text and second text, from high to low."""


class NameForm(IntEnum):
    """How one or two texts form a node's name."""

    PLAIN = 0
    LAUNCH = 1
    GAP = 2
    ARRIVE = 3


_SPELLING: dict[int, str] = {
    NameForm.PLAIN: "{0}",
    NameForm.LAUNCH: "{0} {1}",
    NameForm.GAP: gap_name("{0}", "{1}"),
    NameForm.ARRIVE: "{0} (arrive)",
}


class Text(IntEnum):
    """Texts that every rank's graph has, before the names of its events."""

    START = 0
    """Stands for the time before the first recorded operation."""
    END = 1
    """Stands for the time after the last recorded operation."""
    STEP = 2
    HAND_OVER = 3
    WAIT_FOR_COLLECTIVES = 4
    HIDDEN_WAIT = 5
    BATCH = 6
    UNKNOWN_BATCH = 7
    CUT_WORK = 8
    GRAPH_WORK = 9


TEXTS = (
    "start",
    "end",
    "step",
    "hand-over",
    "wait for collectives",
    "wait before the next call",
    "make batch",
    "batch (not recorded)",
    "GPU work from before the window (not recorded)",
    "CUDA graph (kernels not recorded)",
)


def plain(text: Text) -> int:
    """The packed name that consists of this text."""
    return int(text) << CODE_BITS


def packed(form: NameForm, first: np.ndarray, second: np.ndarray | int = 0) -> np.ndarray:
    """Packed names (int64) of this form from the numbers of their texts."""
    names: np.ndarray = int(form) << 2 * CODE_BITS | first.astype(np.int64) << CODE_BITS | second
    return names


def spelled(names: np.ndarray, texts: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    """(int32 index of each packed name, the distinct names as text)."""
    codes, distinct = numbered(names)
    mask = (1 << CODE_BITS) - 1
    return codes, [
        _SPELLING[name >> 2 * CODE_BITS].format(texts[name >> CODE_BITS & mask], texts[name & mask])
        for name in distinct.tolist()
    ]
