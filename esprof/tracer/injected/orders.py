"""Requests for windows: files in the recording's folder `orders`, and what comes of them."""

import json
import math
import os
from contextlib import suppress
from statistics import median

from .channel import Wish
from .state import State

FEWEST_STEPS = 3
"""From the running step to that of the window: ranks may be a step apart, and one may be ending just now."""

_RECENT_STEPS = 20
_LARGEST_FILE = 1_000


class OrderBox:
    """The folder where people and the launcher leave requests for windows, as `<time in ns>.json`."""

    def __init__(self, raw: str) -> None:
        self._folder = os.path.join(raw, "orders")
        self._read: set[str] = set()

    def new(self) -> list[Wish]:
        """The requests that were not there before."""
        wishes = []
        with suppress(FileNotFoundError):
            for name in sorted(set(os.listdir(self._folder)) - self._read):
                stem, suffix = os.path.splitext(name)
                if suffix == ".json" and stem.isdigit():
                    self._read.add(name)
                    wishes += self._wishes(name, int(stem))
        return wishes

    def _wishes(self, name: str, asked_ns: int) -> list[Wish]:
        """What a file asks for: a window or, which is others' work, something else."""
        with suppress(OSError, ValueError), open(os.path.join(self._folder, name)) as file:
            order = json.loads(file.read(_LARGEST_FILE))
            if isinstance(order, dict) and "at" in order:
                return [Wish(asked_ns, order["at"] if isinstance(order["at"], int) else 0)]
        return []


def step_ahead(state: State, lead_s: float) -> int | None:
    """The step that begins `lead_s` seconds from now at the soonest; None where no step tells yet how long they take."""
    recent = list(state.recent)[-_RECENT_STEPS:]
    if not recent:
        return None
    steps = math.ceil(lead_s * 1e9 / max(median(recent), 1))
    return state.step + max(FEWEST_STEPS, steps)
