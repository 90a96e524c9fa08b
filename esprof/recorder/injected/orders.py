"""Orders of users and the launcher to a running job: files in the recording's folder `orders`."""

import json
import math
import os
from contextlib import suppress
from statistics import median
from typing import NamedTuple

from ...run.raw import names
from .clock.channel import WindowRequest
from .state import StepState

_MIN_STEPS_AHEAD = 3
"""Fewest steps between the current step and a window's first: ranks may be a step apart, and a step may just be ending."""

_RECENT_STEPS = 20
_MAX_ORDER_BYTES = 1_000


class Order(NamedTuple):
    """A request to the ranks: `content` has `at` for a window, or `snapshot` for a snapshot of each rank."""

    asked_ns: int
    content: dict[str, object]

    @property
    def request(self) -> WindowRequest | None:
        """The requested window; None for other orders."""
        if "at" not in self.content:
            return None
        at = self.content["at"]
        return WindowRequest(self.asked_ns, at if isinstance(at, int) else 0)


class OrderBox:
    """The folder of the orders, files named `<time in ns>.json`."""

    def __init__(self, raw: str) -> None:
        self._folder = os.path.join(raw, names.ORDERS)
        self._read: set[str] = set()

    def new(self) -> list[Order]:
        """Orders that arrived since the last call."""
        orders = []
        with suppress(FileNotFoundError):
            for name in sorted(set(os.listdir(self._folder)) - self._read):
                stem, suffix = os.path.splitext(name)
                if suffix == ".json" and stem.isdigit():
                    self._read.add(name)
                    orders += self._order(name, int(stem))
        return orders

    def new_requests(self) -> list[WindowRequest]:
        """The requests for windows among the new orders."""
        return [request for order in self.new() if (request := order.request) is not None]

    def _order(self, name: str, asked_ns: int) -> list[Order]:
        with suppress(OSError, ValueError), open(os.path.join(self._folder, name)) as file:
            content = json.loads(file.read(_MAX_ORDER_BYTES))
            return [Order(asked_ns, content)] if isinstance(content, dict) else []
        return []


def step_ahead(state: StepState, lead_s: float) -> int | None:
    """The first step that starts at least `lead_s` seconds from now; None if no step has been timed yet."""
    recent = list(state.recent)[-_RECENT_STEPS:]
    if not recent:
        return None
    steps = math.ceil(lead_s * 1e9 / max(median(recent), 1))
    return state.step + max(_MIN_STEPS_AHEAD, steps)
