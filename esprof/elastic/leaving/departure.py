"""A job's departure between two steps: all ranks exchange who was asked, notify the launcher, and end."""

import time
from collections.abc import Callable, Sequence

from esprof.core.errors import UsageError
from esprof.core.types import Ns
from esprof.elastic.launch.messages import Left
from esprof.elastic.launch.worker import Launched
from esprof.elastic.leaving.drain import Drained, Leaver
from esprof.elastic.options import Drain
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.runtime.transport import Transport
from esprof.run.logs import JobEvent

_WAIT_FOR_GLOO_S = 0.5
"""PyTorch 2.13 may abort a process that ends right after its last collective on gloo."""


class Departure:
    """The agreement of all ranks to leave, and its execution. Requests are ignored without `Drain`."""

    def __init__(
        self,
        drain: Drain | None,
        launched: Launched,
        transport: Transport,
        last_saved: Callable[[], int | None],
        record: Callable[[JobEvent], None],
    ) -> None:
        """`last_saved` returns the step of the newest complete checkpoint; `record` takes job events."""
        self.leaver = Leaver(drain, transport.rank, last_saved) if drain is not None else None
        self._launched, self._transport, self._record = launched, transport, record
        self._world_after: int | None = None
        """Number of processes with which the job continues; None if unspecified."""

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks have agreed to leave when the next step starts."""
        return self.leaver is not None and self.leaver.agreed

    @property
    def is_asked(self) -> bool:
        """Whether this process was asked to leave."""
        return self.leaver is not None and self.leaver.reason is not None

    def ask(self, reason: str) -> None:
        """Ask this process to leave. Raises UsageError without `Drain`."""
        if self.leaver is None:
            raise UsageError("this job does not accept requests to leave", remedy="Pass drain=Drain().")
        self.leaver.ask(reason)

    def agree(self) -> None:
        """Note that all ranks know of a request."""
        if self.leaver is not None:
            self.leaver.agree()

    def leave_for(self, world: int) -> None:
        """Note that all ranks have agreed to continue with `world` processes."""
        assert self.leaver is not None, "who is launched can leave"
        self._world_after = world
        self.leaver.agree()

    def reasons(self) -> list[str | None]:
        """Why each rank was asked; None for one that was not. All ranks call this."""
        assert self.leaver is not None, "who leaves was heard"
        self.leaver.check_notice()
        return gather_values(self._transport, self.leaver.reason)

    def saved(self, step: int, reasons: Sequence[str | None], stopped_ns: Ns) -> Drained:
        """Report to history and launcher that the job has saved before `step`. Returns the exception that ends the
        process."""
        assert self.leaver is not None, "who leaves was heard"
        asked = [f"{reason} (rank {rank})" for rank, reason in enumerate(reasons) if reason is not None]
        why = asked[0] if asked else f"{self._world_after} processes are to go on"
        self._record(JobEvent(what="left", step=step, reason=why))
        if self._launched.hears(self._transport.rank):
            self._launched.left(
                Left(step=step, world=self._world_after, reason=why, asked=self.is_asked, stopped_ns=stopped_ns)
            )
        self.leaver.saved()
        return Drained(self.leaver.code, step, self.leaver.reason or why)

    def wait_for_gloo(self) -> None:
        """Wait for gloo between the last collective and the end of the process."""
        if self._transport.world > 1:
            time.sleep(_WAIT_FOR_GLOO_S)

    def close(self) -> None:
        """Stop listening for requests."""
        if self.leaver is not None:
            self.leaver.close()
