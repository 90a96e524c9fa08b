"""Request telemetry from a running elastic job, by a file in its Run directory that the job removes."""

from contextlib import suppress
from pathlib import Path

import msgspec

from esprof.core.disk import read_regular
from esprof.core.output import write_bytes
from esprof.core.types import NOT_DECODED
from esprof.run import files

_MAX_BYTES = 1 << 20


class TelemetryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `telemetry.request`."""

    since: int = 0
    """The first step to write."""
    ests: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Assignments for which the job measures its gradient exchange. Each takes four exchanges or 1 s, whichever is longer.
    The last ones are skipped if the total would take too long."""
    max_vnmse: float = 0.0
    """If above 0, the job also measures exchanges by codecs with at most this squared error, relative to the gradient's
    square."""


def ask(run: Path, request: TelemetryRequest) -> None:
    """Write the request. Raises OutputError."""
    write_bytes(run / files.TELEMETRY_REQUEST, msgspec.json.encode(request))


def is_open(run: Path) -> bool:
    """Whether the job has not yet accepted the request."""
    return (run / files.TELEMETRY_REQUEST).exists()


def withdraw(run: Path, request: TelemetryRequest | None = None) -> None:
    """Remove the request; with `request`, only if it is still the current one."""
    if request is not None and waiting(run) != request:
        return
    with suppress(OSError):
        (run / files.TELEMETRY_REQUEST).unlink(missing_ok=True)


def waiting(run: Path) -> TelemetryRequest | None:
    """Return the open request; None if there is none or it is invalid."""
    path = run / files.TELEMETRY_REQUEST
    try:
        return msgspec.json.decode(read_regular(path, _MAX_BYTES), type=TelemetryRequest)
    except (OSError, *NOT_DECODED):
        return None
