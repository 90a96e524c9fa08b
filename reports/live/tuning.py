"""The tuning loop of a running elastic job: read its telemetry, propose a change, try it in alternating blocks of steps, and
accept it or not; repeat after a change point.

The Run directory holds the whole state: a killed loop can be restarted, and the job continues without one.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import Event as Flag

import msgspec

from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.compression.ests import advise_est_codec
from esprof.analyzers.advisors.job.est_answer import EstAdvice, NotRecorded
from esprof.analyzers.advisors.job.ests import advise_ests, shortlist
from esprof.core.errors import EsprofError, UsageError
from esprof.core.plan import MAX_TRIAL_STEPS, Fallback, Plan, PlanStatus, status_of
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile
from esprof.replay.replayed import Replayed
from esprof.reports.live.change_point import ChangePointDetector
from esprof.reports.live.current_run import current_run, has_ended
from esprof.run import files
from esprof.run.logs import HISTORY, ROUNDS, Round, RoundKind, Tail
from esprof.run.request import TelemetryRequest
from esprof.run.run import Run

_NICENESS = 15
_POLL_STEPS_S = 0.25
"""Interval at which new steps are looked for. The job may need the CPU that each look takes."""
_POLL_STATUS_S = 0.05
_POLL_JOB_S = 1.0
_MAX_FAILED_ROUNDS = 3
"""Rounds in a row that may fail, for example because of uneven steps, before the loop waits for a change point."""
_MAX_WAIT_FOR_ANSWER_S = 60.0
"""Longest wait for the job in a round."""

_MIN_ERROR_SHARE = 0.015
"""Smallest prediction error assumed, as a share of a step. A gain below twice the error is not tried."""

_MAX_LONGER = 2
"""How many times as long a repeated trial is."""

_FINAL_STATES = ("kept", "missed", "reverted", "refused")


@dataclass(frozen=True)
class TuningSettings:
    """Settings of the loop."""

    steps: int = 15
    """Steps that a prediction is based on, all with the same assignment."""
    window: int = 10
    """Steps in each block of a trial; the first is not measured."""
    blocks: int = 4
    """Blocks with the plan; there are as many without it."""
    margin: float = 0.02
    """Relative slowdown of each step of the first block, compared with all before, at which the trial is stopped."""
    most_rounds: int = 0
    """Rounds after which the loop ends; 0 for no end."""
    max_vnmse: float = 0.0
    """Largest compression error (vNMSE) of a codec; 0 for no compression."""

    def __post_init__(self) -> None:
        if (steps := 2 * _MAX_LONGER * self.window * self.blocks) > MAX_TRIAL_STEPS:
            raise UsageError(f"a trial could take {steps:,} steps; the limit is {MAX_TRIAL_STEPS:,}")

    def trial(self, longer: int) -> Fallback:
        """Trial of an assignment, with `longer` times as many blocks."""
        return Fallback(margin=self.margin, window=self.window, blocks=longer * self.blocks)

    @property
    def once(self) -> Fallback:
        """Trial of a codec. It changes bits, so it is tried once, and removed if steps are not shorter or its error is too
        large."""
        return Fallback(margin=0.0, window=2 * self.window)


class Tuner:
    """Tunes the job whose Run directory is `run`, until `stop` is set."""

    def __init__(self, run: Path, settings: TuningSettings, stop: Flag, report: Callable[[Round], None]) -> None:
        """`report` is called with each completed round, after it was written to the Run."""
        self._run, self._settings, self._stop, self._report = run, settings, stop, report
        self._plans = PlanFile(run / files.PLAN)
        self._tail, self._change_point = Tail(run), ChangePointDetector()
        self._last_step = -1
        self._changed = False
        """Whether there was a change point since the start of the last round."""
        self._world: int | None = None
        self._unclear, self._in_vain = set[object](), set[object]()
        """Assignments and codecs tried since the last change point: with an inconclusive trial, and without a gain."""
        self._is_encoded = False
        """Whether a codec was accepted."""
        self._next_check_s = 0.0
        self.rounds = list(ROUNDS.read(run))

    def tune(self) -> None:
        """Run the loop, with a low priority of the calling thread, since the job may be on this machine.

        Raises OutputError if the Run cannot be written.
        """
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
        noticed: int | None = None
        kind: RoundKind = "assignment"
        started, failed = len(self.rounds), 0
        while self._wait_for_steps():
            self._changed = False
            made = self._round(kind, noticed)
            if made is None:
                continue
            ROUNDS.append(self._run, made)
            self.rounds.append(made)
            self._report(made)
            if self._settings.most_rounds and len(self.rounds) - started >= self._settings.most_rounds:
                return
            if made.outcome == "unknown" and made.plan is None and failed < _MAX_FAILED_ROUNDS:
                failed += 1
                self._change_point.begin(self._last_step + 1)  # Other steps may be replayed better.
                continue
            failed = 0
            if made.outcome in ("kept", "missed"):
                noticed, kind = None, "assignment"
            elif made.outcome == "reverted" and _change_of(made) not in self._in_vain:
                pass  # Repeat the trial with more blocks.
            elif kind == "assignment" and self._settings.max_vnmse and not self._is_encoded:
                kind = "compression"
            else:
                kind, noticed = "assignment", self._next_change()
                if noticed is None:
                    return
                self._unclear.clear()
                self._in_vain.clear()

    def _wait_for_steps(self) -> bool:
        """Wait for enough steps without a change point. False if the loop must stop."""
        self._read_steps()
        while not self._is_over():
            since = self._change_point.since
            if since is not None and self._last_step + 1 - since >= self._settings.steps:
                return True
            self._stop.wait(_POLL_STEPS_S)
            self._read_steps()
        return False

    def _next_change(self) -> int | None:
        """Wait for a change point. The step at which it was detected; None if the loop must stop."""
        self._read_steps()
        while not self._is_over():
            if self._changed:
                self._changed = False
                return self._last_step
            self._stop.wait(_POLL_STEPS_S)
            self._read_steps()
        return None

    def _read_steps(self) -> None:
        """Read new steps, and note change points and changes of the number of processes."""
        for step in self._tail.read():
            self._changed |= self._change_point.note(step) or self._world not in (None, len(step.ests))
            self._last_step, self._world = step.step, len(step.ests)
            self._next_check_s = time.monotonic() + _POLL_JOB_S

    def _is_over(self) -> bool:
        """Whether the loop must end: by `stop`, or because the job has ended, which is polled once a second while no step
        comes: it takes milliseconds."""
        now = time.monotonic()
        if now >= self._next_check_s:
            self._next_check_s = now + _POLL_JOB_S
            with suppress(EsprofError):  # The next round reports an unreadable Run.
                if has_ended(self._run):
                    self._stop.set()
        return self._stop.is_set()

    def _round(self, kind: RoundKind, noticed: int | None) -> Round | None:
        """The result of a round; None after a change point during the round, which must be repeated."""
        since = self._change_point.since
        current = Round(
            round=len(self.rounds),
            kind=kind,
            step=self._last_step + 1,
            noticed_step=noticed,
            outcome="unknown",
        )
        try:
            current, plan = self._proposed(current, since)
        except NotRecorded as reason:
            return msgspec.structs.replace(current, outcome="nothing", why=reason.reason)
        except EsprofError as error:
            return msgspec.structs.replace(current, why=str(error))
        self._read_steps()
        if self._change_point.since != since:
            return None
        if plan is None:
            return msgspec.structs.replace(current, outcome="nothing")
        given, status = self._sent(plan)
        if status is None or status.state not in _FINAL_STATES:
            why = "the job ended, did not answer, or received another plan before the result"
            return msgspec.structs.replace(current, plan=plan.id, why=why)
        self._read_steps()
        made = _of_status(msgspec.structs.replace(current, plan=given.id), status)
        if status.state == "reverted":
            is_new = _change_of(made) not in self._unclear
            (self._unclear if is_new and _is_unclear(made) else self._in_vain).add(_change_of(made))
        self._is_encoded |= kind == "compression" and status.state in ("kept", "missed")
        return made

    def _proposed(self, current: Round, since: int | None) -> tuple[Round, Plan | None]:
        """The round with the proposal, and its plan; without a plan, the round has the reason.

        Raises EsprofError if the telemetry of the job does not suffice.
        """
        settings = self._settings
        lost = settings.max_vnmse if current.kind == "compression" else 0.0
        replayed = Replayed.of(self._asked(TelemetryRequest(since=since or 0, max_vnmse=lost)))
        error = self._error(current.kind, replayed)
        advice: EstAdvice | CompressionAdvice
        if current.kind == "assignment":
            probed = [one.ests for one in shortlist(replayed)]
            exchanges = (
                self._asked(TelemetryRequest(since=since or 0, ests=tuple(probed))).meta.exchanges if probed[1:] else ()
            )
            advice = advise_ests(replayed, known_error=error, exchanges=exchanges)
            current = msgspec.structs.replace(current, counts=tuple(map(len, advice.decision.ests)))
        else:
            advice = advise_est_codec(replayed, lost, known_error=error)
            current = msgspec.structs.replace(current, codec=advice.decision[0].codec)
        current = _of_advice(current, advice)
        if advice.plan is None:
            gain = f"{advice.gain_pct:.1f} %, less than twice the prediction error of {advice.error_pct:.1f} %"
            return msgspec.structs.replace(current, why=f"the best change found gains {gain}"), None
        change = _change_of(current)
        if change in self._in_vain | self._rolled_back():
            return msgspec.structs.replace(current, why="this change was tried and rolled back"), None
        trial = settings.trial(_MAX_LONGER if change in self._unclear else 1)
        fallback = trial if current.kind == "assignment" else settings.once
        return current, msgspec.structs.replace(advice.plan, fallback=fallback)

    def _asked(self, request: TelemetryRequest) -> Run:
        return current_run(self._run, request, wait_s=_MAX_WAIT_FOR_ANSWER_S)

    def _error(self, kind: RoundKind, replayed: Replayed) -> float:
        """Prediction error as a share of a step: the replay error on this run, or the error of earlier predicted gains.

        A larger error does no harm, since the trial measures the gain.
        """
        off = [
            max(0.0, one.predicted_gain_pct - one.gain_pct) / 100
            for one in self.rounds[self._first_round() :]
            if one.kind == kind and one.gain_pct is not None and one.predicted_gain_pct is not None
        ]
        seen = math.sqrt(fmean(gap * gap for gap in off)) if off else 0.0
        return max(_MIN_ERROR_SHARE, replayed.pricer.error.of_run, seen)

    def _first_round(self) -> int:
        """The first round after the last change point."""
        return max((one.round for one in self.rounds if one.noticed_step is not None), default=0)

    def _rolled_back(self) -> set[object]:
        """Codecs that this job has rolled back, not to be tried again since they change bits."""
        back = {event.plan for event in HISTORY.read(self._run) if event.what == "reverted"}
        return {one.codec for one in self.rounds if one.codec and one.plan in back}

    def _sent(self, plan: Plan) -> tuple[Plan, PlanStatus | None]:
        """Send the plan and wait. (plan as sent, its final status; None if the job reports none)."""
        given, _ = deliver(plan, self._plans, 0)
        until = time.monotonic() + _MAX_WAIT_FOR_ANSWER_S
        status = None
        while not self._is_over() and (status is not None or time.monotonic() < until):
            now = status_of(self._plans.status())
            if now is not None and (now.plan, now.version) == (given.id, given.version):
                status = now
            elif now is not None and now.version is not None and now.version >= given.version:
                return given, None  # Another plan was sent since.
            if status is not None and status.state in _FINAL_STATES:
                break
            self._stop.wait(_POLL_STATUS_S)
        return given, status


def _change_of(one: Round) -> object:
    """The change of a round, as a key."""
    return one.counts or one.codec


def _is_unclear(one: Round) -> bool:
    """Whether a trial without a significant gain was inconclusive: the gain may be as large as predicted."""
    return (
        one.gain_high_pct is not None
        and one.predicted_gain_pct is not None
        and (one.gain_high_pct > one.predicted_gain_pct)
    )


def _of_advice(current: Round, advice: EstAdvice | CompressionAdvice) -> Round:
    return msgspec.structs.replace(
        current,
        before_us=advice.baselines["now"],
        predicted_us=advice.value,
        low_us=advice.low_us,
        high_us=advice.high_us,
        predicted_gain_pct=advice.gain_pct,
    )


def _of_status(current: Round, status: PlanStatus) -> Round:
    assert status.state in ("kept", "missed", "reverted", "refused")
    made = msgspec.structs.replace(current, outcome=status.state, why=status.reason)
    before, after = status.before_us, status.after_us
    if not before or not after:
        return made
    interval = [gain and 100 * gain / before for gain in (status.gain_low_us, status.gain_high_us)]
    return msgspec.structs.replace(
        made,
        before_us=before,
        measured_us=after,
        gain_pct=100 * (1 - after / before),
        gain_low_pct=interval[0],
        gain_high_pct=interval[1],
        error_pct=None if current.predicted_us is None else 100 * (current.predicted_us / after - 1),
    )
