"""Advice for an elastic job that has measured its exchanges, on synthetic runs."""

import pytest

from esprof.analyzers import recommend
from esprof.analyzers.advisors.compression.ests import advise_est_codec
from esprof.analyzers.advisors.job.ests import advise_ests, shortlist
from esprof.core.errors import EsprofError
from esprof.replay.replayed import Replayed
from esprof.reports.terminal.advice.compression import draw_compression
from tests.cases.elastic_runs import ISSUE, elastic_run, exchange

EVEN = [[0, 1, 2, 3], [4, 5, 6, 7]]
SIX = [[0, 1, 2, 3, 4, 5], [6, 7]]
ALL = [list(range(8)), []]
EST, COMMUNICATION, UPDATE = (3_000, 9_000), 5_000, 10
NOW = 4 * 9_000 + COMMUNICATION + UPDATE


def replayed(*exchanges, ests=EVEN, est=EST):
    return Replayed.of(elastic_run(ests, est, communication=COMMUNICATION, update=UPDATE, exchanges=exchanges))


def test_the_shortlist_starts_with_the_present_assignment():
    found = shortlist(replayed())
    assert found[0].ests == tuple(map(tuple, EVEN))
    assert tuple(map(tuple, SIX)) in [one.ests for one in found]
    assert len(found) == len(set(found)) <= 5


def test_a_measured_exchange_determines_its_price():
    # Six ESTs are two subtrees with twice the bytes, but the measured exchange takes no longer.
    measured = [exchange(EVEN, 500), exchange(SIX, 500), exchange(ALL, 250)]
    found = advise_ests(replayed(), exchanges=measured)
    assert found.decision.ests == tuple(map(tuple, SIX))
    assert found.value == pytest.approx(6 * 3_000 + COMMUNICATION + UPDATE, rel=1e-3)
    without = advise_ests(replayed())
    assert without.value > found.value


def test_only_measured_assignments_are_advised():
    found = advise_ests(replayed(), exchanges=[exchange(EVEN, 500), exchange(ALL, 50)])
    assert found.decision.ests == tuple(map(tuple, ALL))
    assert found.value == pytest.approx(8 * 3_000 + COMMUNICATION / 10 + UPDATE, rel=1e-3)


def test_measurements_without_the_present_assignment_are_ignored():
    found = advise_ests(replayed(), exchanges=[exchange(ALL, 1)])
    assert found == advise_ests(replayed())


CODECS = (
    exchange(EVEN, 5_000),
    exchange(EVEN, 3_000, "bf16", 1e-6),
    exchange(EVEN, 1_000, "int8", 1e-4),
    exchange(EVEN, 100, "int4", 0.02),
    exchange(SIX, 1, "sign", 1e-9),
)


def test_the_codec_with_the_shortest_step_within_the_allowed_loss():
    found = advise_est_codec(replayed(*CODECS), 0.01, known_error=0.015)
    assert found.decision[0].codec == "int8"
    assert found.value == pytest.approx(NOW - COMMUNICATION + 1_000 - ISSUE, rel=1e-3)
    assert set(found.baselines) == {"now", "bf16", "int8", "no exchange"}
    assert list(found.left_out) == ["int4"]
    section = found.plan.parts.compression
    assert (section.body.default.codec, section.body.guard.max_vnmse) == ("int8", 0.01)
    assert (section.changes_bits, section.applies) == (True, "live")
    assert "int4: loses 0.02" in draw_compression(found)


def test_a_gain_below_the_error_has_no_plan():
    found = advise_est_codec(replayed(*CODECS), 0.01, known_error=0.2)
    assert found.decision[0].codec == "int8"
    assert found.plan is None


def test_slower_codecs_are_not_advised():
    found = recommend(replayed(exchange(EVEN, 5_000), exchange(EVEN, 9_000, "int8", 1e-4)).run, "compression")
    assert (found.decision[0].codec, found.plan) == ("none", None)
    assert "No change recommended" in draw_compression(found)


def test_a_job_without_measured_exchanges_is_rejected():
    with pytest.raises(EsprofError, match="no exchange with a codec"):
        recommend(replayed().run, "compression")
