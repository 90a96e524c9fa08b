"""Viewers of a job's Run while it runs: they see each step, and may request telemetry."""

import warnings
from pathlib import Path

from esprof.core.errors import EsprofError
from esprof.run.logs import Live, LiveStep
from esprof.run.request import TelemetryRequest, waiting, withdraw


class RunViewers:
    """Serves viewers on rank 0 of a job that has a Run; does nothing elsewhere. Failures do not stop the job."""

    def __init__(self, run: Path | None) -> None:
        self._run = run
        self._live = _live(run) if run is not None else None
        self._stays: TelemetryRequest | None = None
        """A request that was served but could not be removed."""
        if run is not None:
            withdraw(run)  # It was for a previous job. Removing it tells its author that there is no answer.

    def wanted(self, step: int) -> TelemetryRequest | None:
        """The request to write after this step; None if there is none, or it is for later steps."""
        if self._run is None or (request := waiting(self._run)) is None or request.since > step:
            return None
        return request if request != self._stays else None

    def served(self, request: TelemetryRequest) -> None:
        """Remove a request that was answered."""
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
