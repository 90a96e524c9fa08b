"""Step times of a running job, for viewers, its history and the judgement of plans."""

import time
from collections.abc import Sequence

from esprof.core.assignment import Assignment
from esprof.elastic.launch.worker import Launched
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.telemetry.reporter import JobReporter
from esprof.run.logs import LiveStep


class StepClock:
    """Times each step from the end of the previous one; the first from the creation of the clock."""

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
        proven: int | None,
        *,
        is_measure: bool,
    ) -> float | None:
        """Time of the step that has just ended, us, on rank 0, which publishes it; None on other ranks. `version` is that of
        its plan, `proven` the last step whose bits are proven. `is_measure` is False for a step that does not count, such as
        one that ran twice."""
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
                proven=proven,
                twice=not is_measure,
            )
        )
        return took_us
