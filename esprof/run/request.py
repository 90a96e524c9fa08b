"""Asking a running elastic job to write its telemetry now: a file in its Run directory, which the job takes away."""

from contextlib import suppress
from pathlib import Path

import msgspec

from esprof.core.output import write_bytes
from esprof.run import files

_MAX_BYTES = 1 << 20


class TelemetryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    since: int = 0
    """The first step to be written."""
    ests: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Assignments with which the job is to measure the exchange of its gradients: that takes as long as four exchanges for
    each, or a second, whichever is longer. Of those that come last some are left out where it would take too long."""
    max_vnmse: float = 0.0
    """If above 0 it also measures the exchange by codecs that lose at most so much of the gradient's square."""


def ask(run: Path, request: TelemetryRequest) -> None:
    """Raises OutputError."""
    write_bytes(run / files.TELEMETRY_REQUEST, msgspec.json.encode(request))


def is_open(run: Path) -> bool:
    """Whether the job has not yet taken the request."""
    return (run / files.TELEMETRY_REQUEST).exists()


def withdraw(run: Path, request: TelemetryRequest | None = None) -> None:
    """Ask no more; if a `request` is given, for that: another one that has come since stays."""
    if request is not None and waiting(run) != request:
        return
    with suppress(OSError):
        (run / files.TELEMETRY_REQUEST).unlink(missing_ok=True)


def waiting(run: Path) -> TelemetryRequest | None:
    """What the job is asked for; None where that is nothing, or no request."""
    path = run / files.TELEMETRY_REQUEST
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=TelemetryRequest)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
