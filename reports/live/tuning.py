"""The closed loop: a running elastic job is asked what its steps take, is given what would make them shorter, tries that by
turns, and keeps it or not; and again, when it has changed.

All that is known stands in the Run directory: a loop that was killed is begun anew, and the job goes on without one.
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
from esprof.analyzers.advisors.job.est_answer import EstAdvice, NotTold
from esprof.analyzers.advisors.job.ests import advise_ests, shortlist
from esprof.core.errors import EsprofError
from esprof.core.plan import Fallback, Plan, PlanStatus, status_of
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile
from esprof.replay.replayed import Replayed
from esprof.reports.live.current_run import current_run, has_ended
from esprof.reports.live.step_shift import Shift
from esprof.run import files
from esprof.run.logs import HISTORY, ROUNDS, Round, RoundKind, Tail
from esprof.run.request import TelemetryRequest
from esprof.run.run import Run

_NICENESS = 15
_POLL_FILES_S = 0.05
_POLL_JOB_S = 1.0
_MAX_FAILED_ROUNDS = 3
"""Rounds in a row that may fail, as where steps were too uneven to be replayed, before the loop waits for a change."""
_MAX_WAIT_FOR_ANSWER_S = 60.0
"""A job that says nothing for so long is asked no more, in this round."""

_MIN_ERROR_SHARE = 0.015
"""What a prediction may be off at the least, as a share of a step; a gain of less than twice that is worth no trial."""

_FINAL_STATES = ("kept", "missed", "reverted", "refused")


@dataclass(frozen=True)
class TuningSettings:
    """How the loop goes about it."""

    steps: int = 15
    """Steps that advice rests on, all with the same assignment."""
    window: int = 10
    """Steps of a block of a trial, of which the first is left out."""
    blocks: int = 4
    """Blocks with the plan; as many without it come between them."""
    margin: float = 0.02
    """How much longer each step of the first block may be than any before, relative, before the trial is broken off."""
    most_rounds: int = 0
    """Rounds after which the loop ends; 0 for no end."""
    max_vnmse: float = 0.0
    """What a codec may lose of the gradient's square; 0 where gradients are to be left as they are."""

    def trial(self, longer: int) -> Fallback:
        """How an assignment is judged, in `longer` times as many blocks."""
        return Fallback(margin=self.margin, window=self.window, blocks=longer * self.blocks)

    @property
    def once(self) -> Fallback:
        """How a codec is judged, which changes bits: it comes once, and goes where steps are not shorter or its guard
        objects."""
        return Fallback(margin=0.0, window=2 * self.window)


class Tuner:
    """Tunes the job whose Run directory is `run`, until `stop` is set."""

    def __init__(self, run: Path, settings: TuningSettings, stop: Flag, report: Callable[[Round], None]) -> None:
        """`report` gets each round when it is over; it also stands in the Run then."""
        self._run, self._settings, self._stop, self._report = run, settings, stop, report
        self._plans = PlanFile(run / files.PLAN)
        self._tail, self._shift = Tail(run), Shift()
        self._last_step = -1
        self._changed = False
        """Whether the job was seen to change, and no round has begun by that yet."""
        self._world: int | None = None
        self._unclear, self._in_vain = set[object](), set[object]()
        """Assignments and codecs that were tried since the job has changed last: of the one nobody can tell yet, the others
        did no good."""
        self._is_encoded = False
        """Whether a codec was kept."""
        self._asks_s = 0.0
        self.rounds = list(ROUNDS.read(run))

    def tune(self) -> None:
        """The calling thread gets a low priority: the job, which may be on the same machine, should not miss its CPU time.
        Raises OutputError where the Run cannot be written."""
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
                self._shift.begin(self._last_step + 1)  # Other steps may tell more.
                continue
            failed = 0
            if made.outcome in ("kept", "missed"):
                noticed, kind = None, "assignment"
            elif made.outcome == "reverted" and _change_of(made) not in self._in_vain:
                pass  # Once more, and longer.
            elif kind == "assignment" and self._settings.max_vnmse and not self._is_encoded:
                kind = "compression"
            else:
                kind, noticed = "assignment", self._next_shift()
                if noticed is None:
                    return
                self._unclear.clear()
                self._in_vain.clear()

    def _wait_for_steps(self) -> bool:
        """Whether there are steps enough that are alike; False where the loop is to stop."""
        while not self._is_over():
            self._look()
            since = self._shift.since
            if since is not None and self._last_step + 1 - since >= self._settings.steps:
                return True
            self._stop.wait(_POLL_FILES_S)
        return False

    def _next_shift(self) -> int | None:
        """The step at which the job is seen to have changed; None where the loop is to stop."""
        while not self._is_over():
            self._look()
            if self._changed:
                self._changed = False
                return self._last_step
            self._stop.wait(_POLL_FILES_S)
        return None

    def _look(self) -> None:
        """Take in the steps that have come, and whether the job has shifted with them, or has more or fewer processes."""
        for step in self._tail.read():
            self._changed |= self._shift.note(step) or self._world not in (None, len(step.ests))
            self._last_step, self._world = step.step, len(step.ests)

    def _is_over(self) -> bool:
        """Whether the loop is to end: somebody has said so, or the job has ended, which is looked at once a second."""
        now = time.monotonic()
        if now >= self._asks_s:
            self._asks_s = now + _POLL_JOB_S
            with suppress(EsprofError):  # Of a Run that cannot be read just now a round will tell.
                if has_ended(self._run):
                    self._stop.set()
        return self._stop.is_set()

    def _round(self, kind: RoundKind, noticed: int | None) -> Round | None:
        """What came of one round; None where the job was changed while it was asked: then it is asked again."""
        since = self._shift.since
        told = Round(
            round=len(self.rounds),
            kind=kind,
            step=self._last_step + 1,
            noticed_step=noticed,
            outcome="unknown",
        )
        try:
            told, plan = self._advised(told, since)
        except NotTold as reason:
            return msgspec.structs.replace(told, outcome="nothing", why=reason.reason)
        except EsprofError as error:
            return msgspec.structs.replace(told, why=str(error))
        self._look()
        if self._shift.since != since:
            return None
        if plan is None:
            return msgspec.structs.replace(told, outcome="nothing")
        given, status = self._handed_over(plan)
        if status is None or status.state not in _FINAL_STATES:
            why = "the job ended, did not answer, or was given another plan, before it told"
            return msgspec.structs.replace(told, plan=plan.id, why=why)
        self._look()
        made = _of_status(msgspec.structs.replace(told, plan=given.id), status)
        if status.state == "reverted":
            is_new = _change_of(made) not in self._unclear
            (self._unclear if is_new and _is_unclear(made) else self._in_vain).add(_change_of(made))
        self._is_encoded |= kind == "compression" and status.state in ("kept", "missed")
        return made

    def _advised(self, told: Round, since: int | None) -> tuple[Round, Plan | None]:
        """The round with what is advised, and the plan for it; None, and why, where there is nothing to try. Raises
        EsprofError where the job does not tell enough."""
        settings = self._settings
        lost = settings.max_vnmse if told.kind == "compression" else 0.0
        replayed = Replayed.of(self._asked(TelemetryRequest(since=since or 0, max_vnmse=lost)))
        error = self._error(told.kind, replayed)
        advice: EstAdvice | CompressionAdvice
        if told.kind == "assignment":
            probed = [one.ests for one in shortlist(replayed)]
            exchanges = (
                self._asked(TelemetryRequest(since=since or 0, ests=tuple(probed))).meta.exchanges if probed[1:] else ()
            )
            advice = advise_ests(replayed, known_error=error, exchanges=exchanges)
            told = msgspec.structs.replace(told, counts=tuple(map(len, advice.decision.ests)))
        else:
            advice = advise_est_codec(replayed, lost, known_error=error)
            told = msgspec.structs.replace(told, codec=advice.decision[0].codec)
        told = _of_advice(told, advice)
        if advice.plan is None:
            sure = f"gains {advice.gain_pct:.1f} %, and may be {advice.error_pct:.1f} % off"
            return msgspec.structs.replace(told, why=f"the best that was found {sure}"), None
        change = _change_of(told)
        if change in self._in_vain | self._taken_back():
            return msgspec.structs.replace(told, why="it was tried, and taken back"), None
        trial = settings.trial(2 if change in self._unclear else 1)
        fallback = trial if told.kind == "assignment" else settings.once
        return told, msgspec.structs.replace(advice.plan, fallback=fallback)

    def _asked(self, request: TelemetryRequest) -> Run:
        return current_run(self._run, request, wait_s=_MAX_WAIT_FOR_ANSWER_S)

    def _error(self, kind: RoundKind, replayed: Replayed) -> float:
        """How far a prediction may be off, as a share of a step: as replay was on this run, or as predictions of this job's
        gains by such plans were too high so far. That it may be off by more, as for other jobs, does no harm: what comes of
        it will be measured."""
        off = [
            max(0.0, one.predicted_gain_pct - one.gain_pct) / 100
            for one in self.rounds[self._begins_at() :]
            if one.kind == kind and one.gain_pct is not None and one.predicted_gain_pct is not None
        ]
        seen = math.sqrt(fmean(gap * gap for gap in off)) if off else 0.0
        return max(_MIN_ERROR_SHARE, replayed.pricer.error.of_run, seen)

    def _begins_at(self) -> int:
        """The round before which the job was seen to change last."""
        return max((one.round for one in self.rounds if one.noticed_step is not None), default=0)

    def _taken_back(self) -> set[object]:
        """Codecs that this job has had and given up, also before this loop began: they have changed bits enough."""
        back = {event.plan for event in HISTORY.read(self._run) if event.what == "reverted"}
        return {one.codec for one in self.rounds if one.codec and one.plan in back}

    def _handed_over(self, plan: Plan) -> tuple[Plan, PlanStatus | None]:
        """(the plan as the job has it, what became of it once that is decided; None where the job says nothing of it)."""
        given, _ = deliver(plan, self._plans, 0)
        until = time.monotonic() + _MAX_WAIT_FOR_ANSWER_S
        status = None
        while not self._is_over() and (status is not None or time.monotonic() < until):
            now = status_of(self._plans.status())
            if now is not None and (now.plan, now.version) == (given.id, given.version):
                status = now
            elif now is not None and now.version is not None and now.version > given.version:
                return given, None  # Somebody has handed over another one since.
            if status is not None and status.state in _FINAL_STATES:
                break
            self._stop.wait(_POLL_FILES_S)
        return given, status


def _change_of(one: Round) -> object:
    """What a round changes, to tell it from others."""
    return one.counts or one.codec


def _is_unclear(one: Round) -> bool:
    """Whether a trial that did not show a gain was too short to tell: it may be as large as promised."""
    return (
        one.gain_high_pct is not None
        and one.predicted_gain_pct is not None
        and (one.gain_high_pct > one.predicted_gain_pct)
    )


def _of_advice(told: Round, advice: EstAdvice | CompressionAdvice) -> Round:
    return msgspec.structs.replace(
        told,
        before_us=advice.baselines["now"],
        predicted_us=advice.value,
        low_us=advice.low_us,
        high_us=advice.high_us,
        predicted_gain_pct=advice.gain_pct,
    )


def _of_status(told: Round, status: PlanStatus) -> Round:
    assert status.state in ("kept", "missed", "reverted", "refused")
    made = msgspec.structs.replace(told, outcome=status.state, why=status.reason)
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
        error_pct=None if told.predicted_us is None else 100 * (told.predicted_us / after - 1),
    )
