"""Those who look at a job's Run while it runs: they see each step, and may ask for its telemetry."""

import warnings
from pathlib import Path

from esprof.core.errors import EsprofError
from esprof.run.logs import Live, LiveStep
from esprof.run.request import TelemetryRequest, waiting, withdraw


class RunViewers:
    """On rank 0, of a job that has a Run; elsewhere nobody looks. Nothing that goes wrong here hurts the job."""

    def __init__(self, run: Path | None) -> None:
        self._run = run
        self._live = _live(run) if run is not None else None
        self._stays: TelemetryRequest | None = None
        """One that was served and cannot be taken away."""
        if run is not None:
            withdraw(run)  # It was for a job that is no more, and whoever asked is told that there is no answer.

    def wanted(self, step: int) -> TelemetryRequest | None:
        """What somebody wants written after this step; None if nobody does, or wants later ones."""
        if self._run is None or (request := waiting(self._run)) is None or request.since > step:
            return None
        return request if request != self._stays else None

    def served(self, request: TelemetryRequest) -> None:
        """What was asked for is written."""
        if self._run is not None:
            withdraw(self._run, request)
            self._stays = request if waiting(self._run) == request else None

    def show(self, step: LiveStep) -> None:
        if self._live is None:
            return
        try:
            self._live.note(step)
        except EsprofError as error:
            _warn(error)

    def close(self) -> None:
        if self._live is not None:
            self._live.close()


def _live(run: Path) -> Live | None:
    try:
        return Live(run)
    except EsprofError as error:
        _warn(error)
        return None


def _warn(error: EsprofError) -> None:
    warnings.warn(f"the live view of the job is off: {error}", stacklevel=5)
