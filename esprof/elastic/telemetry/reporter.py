"""Reports of a running job: each step, its events, and the answers to requests."""

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.telemetry.recorder import NoTelemetry, Telemetry
from esprof.elastic.telemetry.viewers import RunViewers
from esprof.run.logs import HISTORY, JobEvent, LiveStep
from esprof.run.request import TelemetryRequest
from esprof.run.run import Exchange

_STEPS_REMEMBERED = 15
"""Number of steps over which the time of an EST is estimated."""

Measure = Callable[[TelemetryRequest, Sequence[float]], tuple[Exchange, ...]]
"""Measures the exchanges of a request, on all ranks; the second argument is the time of an EST on each rank, s."""


class JobReporter:
    """Reporter of one trainer. Only rank 0 writes steps and events, and reads requests; failures do not stop the job."""

    def __init__(self, run: Path | None, telemetry: Telemetry | NoTelemetry) -> None:
        """`run` is the Run directory; None if there is none."""
        self._telemetry = telemetry
        self._run = run if telemetry.unwatched.rank == 0 else None
        self._viewers = RunViewers(self._run)
        self._request: TelemetryRequest | None = None
        self._is_asked = False
        """Whether all ranks know of a request."""
        self._est_us: deque[list[float | None]] = deque(maxlen=_STEPS_REMEMBERED)
        """Time of an EST on each rank in the last steps, us; None for a rank without ESTs."""
        self.has_paused = False
        """Whether other work was done since the last step, so that the time of the next one does not count."""

    def record(self, event: JobEvent) -> None:
        """Record an event. If that fails, training continues with a warning."""
        if self._run is None:
            return
        try:
            HISTORY.append(self._run, event)
        except EsprofError as error:
            warnings.warn(f"the job's history lacks an event: {error}", stacklevel=3)

    def is_asked(self, step: int) -> bool:
        """Whether this rank knows of a request for the telemetry after this step."""
        self._request = self._viewers.wanted(step)
        return self._request is not None

    def step_ended(self, *, asked: bool, busy_us: Sequence[float], assignment: Assignment, is_measure: bool) -> None:
        """Record a step with values that are the same on all ranks: whether one `is_asked`, and how long each was
        busy, us."""
        self._is_asked, self.has_paused = asked, False
        if is_measure:
            counts = map(len, assignment.ests)
            self._est_us.append([us / count if count else None for us, count in zip(busy_us, counts, strict=True)])

    def show(self, step: LiveStep) -> None:
        self._viewers.show(step)

    def answer(self, measure: Measure) -> None:
        """Write the requested telemetry and the measurements for it. All ranks call this between two steps."""
        if not self._is_asked:
            return
        self._is_asked, self.has_paused = False, True
        agreed = gather_values(self._telemetry.unwatched, msgspec.to_builtins(self._request))[0]
        request = msgspec.convert(agreed, TelemetryRequest)
        self._telemetry.write(max(0, request.since), measure(request, self._est_s()))
        self._viewers.served(request)

    def close(self) -> None:
        self._viewers.close()

    def _est_s(self) -> list[float]:
        """Median time of an EST on each rank, s. A rank without ESTs gets the median of the others; all are 0 before
        the first step that counts."""
        if not self._est_us:
            return [0.0] * self._telemetry.unwatched.world
        known = [[us for us in of_rank if us is not None] for of_rank in zip(*self._est_us, strict=True)]
        usual = median(us for of_rank in known for us in of_rank)
        return [(median(of_rank) if of_rank else usual) / 1e6 for of_rank in known]
