"""How long each step of a running job takes: for viewers, for its history and for plans that are judged."""

import time
from collections.abc import Sequence

from esprof.core.assignment import Assignment
from esprof.elastic.launch.worker import Launched
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.telemetry.reporter import JobReporter
from esprof.run.logs import LiveStep


class StepClock:
    """Times steps from the end of the one before; the first from when this was made."""

    def __init__(self, reporter: JobReporter, launched: Launched, transport: Transport) -> None:
        self._reporter, self._launched, self._transport = reporter, launched, transport
        self._ended_ns = time.perf_counter_ns()

    def step_ended(
        self,
        number: int,
        busy_us: Sequence[float],
        updated_us: Sequence[float],
        assignment: Assignment,
        version: int | None,
        *,
        is_measure: bool,
    ) -> float | None:
        """How long the step took that has just ended, us, on rank 0, which tells; None elsewhere. `version` is that of the
        plan that held in it. One that was made twice, say, is no measure of others."""
        ended_ns, before_ns = time.perf_counter_ns(), self._ended_ns
        self._ended_ns = ended_ns
        if self._transport.rank != 0:
            return None
        if (scaled := self._launched.stepped(number, self._transport.world)) is not None:
            self._reporter.record(scaled)
        took_us = (ended_ns - before_ns) / 1e3
        self._reporter.show(
            LiveStep(
                step=number,
                took_us=took_us,
                busy_us=tuple(busy_us),
                ests=tuple(map(len, assignment.ests)),
                updated_us=tuple(updated_us),
                version=version,
                twice=not is_measure,
            )
        )
        return took_us
