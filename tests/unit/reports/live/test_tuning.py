"""The tuning loop on jobs with real ranks and plans, and simulated times."""

import random
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError
from esprof.core.plan import read_plan
from esprof.elastic.plans.adoption import Adoption
from esprof.elastic.plans.change import Fits, Now
from esprof.elastic.plans.source import PlanFile
from esprof.elastic.runtime.agree import gather_values
from esprof.reports.live import tuning
from esprof.reports.live.tuning import Tuner, TuningSettings
from esprof.run.logs import HISTORY, ROUNDS, JobEvent, Live, LiveStep, Round
from tests.cases.elastic import on_threads
from tests.cases.elastic_runs import elastic_run, exchange

N_EST = 8
COMMUNICATION_US, UPDATE_US = 300, 100
SETTINGS = TuningSettings(steps=6, window=5, blocks=3)


class SimulatedJob:
    """Two ranks adopt plans as in a real job; `est_us(step)` is the time of an EST on each of them."""

    def __init__(self, run, est_us, scatter=0.01):
        self.run, self._est_us, self._scatter = run, est_us, scatter
        self.codecs = {}
        """Codec -> time of an exchange as measured by the job, us."""
        self.codec, self.with_codec_us = "none", {}
        """Codec -> true time of an exchange, us."""
        self.assignment = Assignment.even(N_EST, 2)
        self.step = 0
        self.is_over = False

    def telemetry(self, run, asked, *, wait_s):
        assert run == self.run
        exchanges = [exchange(ests, COMMUNICATION_US) for ests in asked.ests]
        if asked.max_vnmse:
            exchanges += [exchange(self.assignment.ests, us, codec) for codec, us in self.codecs.items()]
        return elastic_run(
            self.assignment.ests,
            self._est_us(self.step),
            communication=COMMUNICATION_US,
            update=UPDATE_US,
            exchanges=exchanges,
        )

    def train(self, transport):
        is_first = transport.rank == 0
        fits = Fits(
            n_est=N_EST, level="D1", scaled=False, model_signature="", gradient_bytes=0, check_world=lambda *_: None
        )
        adoption = Adoption(PlanFile(self.run / "plan.json"), fits, transport, partial(HISTORY.append, self.run))
        live, draw, assignment, step = Live(self.run), random.Random(0), self.assignment, 0
        while not any(gather_values(transport, self.is_over and is_first)):
            news = any(gather_values(transport, adoption.has_news()))
            if is_first:
                time.sleep(0.001)
                busy = [us * len(ests) for us, ests in zip(self._est_us(step), assignment.ests, strict=True)]
                communication = self.with_codec_us.get(self.codec, COMMUNICATION_US)
                took = (max(busy) + communication + UPDATE_US) * (1 + abs(draw.gauss(0, self._scatter)))
                counts = tuple(map(len, assignment.ests))
                live.note(
                    LiveStep(
                        step=step, took_us=took, busy_us=tuple(busy), ests=counts, version=adoption.version_at(step)
                    )
                )
                adoption.step_ended(step, took)
            step += 1
            change = None
            if news or adoption.is_due(step):
                change = adoption.at_boundary(Now(step, assignment, self.codec, None, None, 0), news=news)
            if change is not None and change.ests is not None:
                assignment = Assignment.of(change.ests)
            if is_first and change is not None and change.codec is not None:
                self.codec = change.codec
            if is_first:
                self.assignment, self.step = assignment, step

    def tuned(self, monkeypatch, until, settings=SETTINGS):
        """The rounds of a loop that tunes this job until `until(job, rounds)`."""
        monkeypatch.setattr(tuning, "current_run", self.telemetry)
        # The job here is a thread of the same process: on a busy machine it would leave the loop no CPU time.
        monkeypatch.setattr(tuning, "_NICENESS", 0)
        stop, found = threading.Event(), []

        def note(one):
            # Stop here rather than in the thread of the test, in which another round may have ended by then.
            found.append(one)
            if until(self, found):
                stop.set()

        loop = threading.Thread(target=Tuner(self.run, settings, stop, note).tune)
        job = threading.Thread(target=on_threads, args=(2, self.train))
        job.start()
        loop.start()
        end = time.monotonic() + 120
        while not (stop.is_set() or until(self, found)) and time.monotonic() < end:
            time.sleep(0.02)
        stop.set()
        loop.join()
        self.is_over = True
        job.join()
        assert until(self, found), found
        return found

    @property
    def counts(self):
        return tuple(map(len, self.assignment.ests))


def test_an_uneven_job_gets_the_best_split_and_no_further_change(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 3_000))
    found = job.tuned(monkeypatch, lambda _, found: len(found) == 2)
    assert job.counts == (6, 2)
    accepted, nothing = found
    assert (accepted.outcome, accepted.counts, nothing.outcome) == ("kept", (6, 2), "nothing")
    assert accepted.gain_low_pct <= accepted.gain_pct <= accepted.gain_high_pct
    assert accepted.gain_pct == pytest.approx(100 * (1 - 6_400 / 12_400), abs=2)
    assert accepted.error_pct == pytest.approx(0, abs=8)
    assert [event.what for event in HISTORY.read(tmp_path)] == ["trying", "kept"]
    assert ROUNDS.read(tmp_path) == tuple(found)


def test_a_balanced_job_is_not_changed(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000), scatter=0.03)
    found = job.tuned(monkeypatch, lambda job, _: job.step > 600)
    assert {one.outcome for one in found} == {"nothing"}
    assert HISTORY.read(tmp_path) == ()


def test_a_rank_that_becomes_slow_during_the_run_starts_a_round(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda step: (1_000, 1_000 if step < 150 else 3_000))
    found = job.tuned(monkeypatch, lambda _, found: any(one.outcome == "kept" for one in found))
    assert found[0].outcome == "nothing"
    accepted = next(one for one in found if one.outcome == "kept")
    assert accepted.noticed_step >= 150
    assert job.counts == (6, 2)


def test_a_change_without_a_gain_is_reverted(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    promised = elastic_run(job.assignment.ests, (1_000, 3_000), communication=COMMUNICATION_US, update=UPDATE_US)
    job.telemetry = lambda *_, **__: promised
    tried = job.tuned(monkeypatch, lambda _, found: len(found) == 1)
    assert [one.outcome for one in tried] == ["reverted"]
    assert job.counts == (4, 4)
    assert tried[0].gain_pct < 0


def test_a_job_that_does_not_answer_makes_a_round_without_result(tmp_path, monkeypatch):
    def silent(*_, **__):
        raise EsprofError("it says nothing")

    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    job.telemetry = silent
    found = job.tuned(monkeypatch, lambda _, found: found)
    assert (found[0].outcome, found[0].why) == ("unknown", "it says nothing")


def test_the_loop_ends_after_most_rounds(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 3_000))
    found = job.tuned(monkeypatch, lambda job, found: job.step > 150 and found, TuningSettings(5, 5, 3, most_rounds=1))
    assert len(found) == 1


def test_an_inconclusive_trial_is_repeated_once_with_more_blocks(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    promised = elastic_run(job.assignment.ests, (1_000, 3_000), communication=COMMUNICATION_US, update=UPDATE_US)
    job.telemetry = lambda *_, **__: promised
    monkeypatch.setattr(tuning, "_is_unclear", lambda _: True)
    monkeypatch.setattr(Tuner, "_error", lambda *_: 0.015)  # It would learn from the first trial that there is no gain.
    found = job.tuned(monkeypatch, lambda job, found: len(found) == 2 and job.step > 200)
    assert [(one.outcome, one.counts) for one in found] == [("reverted", (6, 2))] * 2
    assert read_plan(tmp_path / "plan.json").fallback.blocks == 2 * SETTINGS.blocks


@pytest.mark.parametrize(
    ("high", "unclear"), [(25.0, True), (15.0, False), (None, False)], ids=["may be", "is less", "broken off"]
)
def test_a_trial_is_unclear_if_the_gain_may_be_as_predicted(high, unclear):
    round_ = Round(
        round=0,
        kind="assignment",
        step=1,
        outcome="reverted",
        predicted_gain_pct=20.0,
        gain_pct=9.0,
        gain_high_pct=high,
    )
    assert tuning._is_unclear(round_) is unclear


ALLOWED = TuningSettings(steps=6, window=5, blocks=3, max_vnmse=0.01)


def test_a_codec_is_tried_once_if_allowed(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    job.codecs, job.with_codec_us = {"int8": 10, "bf16": 200}, {"int8": 20}
    monkeypatch.setattr("tests.unit.reports.live.test_tuning.COMMUNICATION_US", 3_000)
    found = job.tuned(monkeypatch, lambda _, found: len(found) == 3, ALLOWED)
    assert [(one.kind, one.outcome) for one in found] == [
        ("assignment", "nothing"),
        ("compression", "kept"),
        ("assignment", "nothing"),
    ]
    assert (found[1].codec, job.codec) == ("int8", "int8")
    assert found[1].predicted_gain_pct == pytest.approx(100 * 2_990 / 7_100, abs=1)
    assert found[1].gain_pct == pytest.approx(100 * 2_980 / 7_100, abs=3)


def test_a_codec_that_makes_steps_longer_is_removed_and_not_tried_again(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda step: (1_000, 1_000) if step < 200 else (1_300, 1_300))
    job.codecs, job.with_codec_us = {"int8": 10}, {"int8": 9_000}
    monkeypatch.setattr("tests.unit.reports.live.test_tuning.COMMUNICATION_US", 3_000)
    found = job.tuned(monkeypatch, lambda _, found: len(found) > 3, ALLOWED)
    assert [(one.kind, one.outcome) for one in found[:4]] == [
        ("assignment", "nothing"),
        ("compression", "reverted"),
        ("assignment", "nothing"),  # By the change at step 200.
        ("compression", "nothing"),
    ]
    assert found[3].why == "this change was tried and rolled back"


def test_a_codec_reverted_before_the_loop_started_is_not_tried(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    job.codecs = {"int8": 10}
    monkeypatch.setattr("tests.unit.reports.live.test_tuning.COMMUNICATION_US", 3_000)
    ROUNDS.append(tmp_path, Round(round=0, kind="compression", step=5, outcome="kept", plan="first", codec="int8"))
    HISTORY.append(tmp_path, JobEvent(what="reverted", step=300, plan="first"))
    found = job.tuned(monkeypatch, lambda _, found: len(found) == 2, ALLOWED)
    assert (found[1].outcome, found[1].codec, found[1].why) == (
        "nothing",
        "int8",
        "this change was tried and rolled back",
    )


def test_a_codec_without_a_gain_is_removed(tmp_path, monkeypatch):
    # Steps scatter less than the codec costs: otherwise a few draws in a hundred look like a gain.
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000), scatter=0.001)
    job.codecs, job.with_codec_us = {"int8": 10}, {"int8": 3_050}
    monkeypatch.setattr("tests.unit.reports.live.test_tuning.COMMUNICATION_US", 3_000)
    found = job.tuned(monkeypatch, lambda _, found: len(found) == 2, ALLOWED)
    assert (found[1].outcome, job.codec) == ("reverted", "none")


def test_predictions_before_a_change_point_do_not_count_as_errors(tmp_path):
    off = {"kind": "assignment", "outcome": "kept", "predicted_gain_pct": 60.0, "gain_pct": 10.0}
    for number, noticed in enumerate((None, 400)):
        ROUNDS.append(tmp_path, Round(round=number, step=number, noticed_step=noticed, **off))
        error = Tuner(tmp_path, SETTINGS, threading.Event(), lambda _: None)._error("assignment", promising(0.03))
        assert error == pytest.approx(0.5)
    ROUNDS.append(tmp_path, Round(round=2, step=900, kind="assignment", outcome="nothing", noticed_step=800))
    error = Tuner(tmp_path, SETTINGS, threading.Event(), lambda _: None)._error("assignment", promising(0.03))
    assert error == pytest.approx(0.03)


def promising(error):
    return SimpleNamespace(pricer=SimpleNamespace(error=SimpleNamespace(of_run=error)))


def test_a_run_that_cannot_be_read_does_not_end_the_loop(tmp_path):
    (tmp_path / "run.json").write_text("{")
    assert not Tuner(tmp_path, SETTINGS, threading.Event(), lambda _: None)._is_over()


def test_a_job_that_cannot_measure_codecs_gets_none(tmp_path, monkeypatch):
    job = SimulatedJob(tmp_path, lambda _: (1_000, 1_000))
    found = job.tuned(monkeypatch, lambda _, found: len(found) == 2, ALLOWED)
    assert (found[1].outcome, found[1].codec) == ("nothing", "")
    assert "has measured no exchange" in found[1].why
