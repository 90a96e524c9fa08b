"""Set the knobs of a recording in this process, and write their values to the log."""

from collections.abc import Callable, Sequence

from .log.circuit_breaker import CircuitBreaker
from .log.notes import Log


class Knobs:
    """The knobs in `Settings.knobs`. The package `knobs` is imported only if there are any."""

    def __init__(self, wanted: Sequence[tuple[str, str | None]], log: Log) -> None:
        self._wanted = wanted
        self._log = log
        self._breakers = {name: CircuitBreaker(f"setting of {name}", log) for name, _ in wanted}
        self._readers: dict[str, Callable[[], tuple[str | None, str]]] = {}

    def install(self) -> None:
        for name, value in self._wanted:
            self._breakers[name].run(self._install, name, value)

    def note(self) -> None:
        """Write the current value of each knob; None for a knob that could not be set."""
        for name, breaker in self._breakers.items():
            value, reason = breaker.run(self._readers.get(name, _not_set)) or _not_set()
            self._log.note("knob", name=name, value=value, reason=reason)

    def _install(self, name: str, value: str | None) -> None:
        from ..knobs import KNOBS

        self._readers[name] = KNOBS[name].install(value)


def _not_set() -> tuple[str | None, str]:
    return None, "it could not be set or read, for the reason on stderr"
