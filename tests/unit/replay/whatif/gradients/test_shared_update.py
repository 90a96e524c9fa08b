"""Updates that ranks share, worked by hand: 2 ranks, 4 MiB, all-reduces of 20 ms per MiB, an update of 5 ms."""

from dataclasses import replace

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls, StepMarks
from esprof.replay.engine.timeline import replay as replayed
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.gradients.buckets import MIB
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.scenario import Declined, Scenario
from tests.cases.gloo_buckets import ddp_step, run_with
from tests.cases.graph import run_of

UPDATE = "Optimizer.step#AdamW.step"


def run(last=UPDATE):
    return run_with((1, 1, 2), (1, 1, 1), last=last)


def unlike(*last_ms):
    """A job whose ranks take so long for their updates."""
    return run_of(
        {rank: ddp_step((1, 1, 2), (1, 1, 1), last=UPDATE, last_ms=took) for rank, took in enumerate(last_ms)}
    )


def changed(of, recorded=None):
    recorded = recorded or build(of)
    return apply(Scenario(of, Blame(recorded, (1,)), recorded), parse("zero=1"))


def shared(of, recorded=None):
    return changed(of, recorded).dfg


def longer_ms(changed, recorded):
    return (replayed(changed).step_ns() - replayed(recorded).step_ns()) / 1e6


def test_each_rank_updates_its_part_and_waits_for_the_others():
    recorded, changed = build(run()), shared(run())
    # Half of an update of 5 ms. The parts travel in half the time of an all-reduce of 4 MiB, 80 ms.
    assert longer_ms(changed, recorded) == pytest.approx([-2.5 + 40.0], abs=0.01)
    one, other = np.flatnonzero(changed.of(Cls.COMMUNICATION))[-2:]
    assert (changed.label(one), changed.bytes[one]) == ("all_gather", 4 * MIB)
    assert changed.collective[one] == changed.collective[other]


def test_a_step_that_ended_with_the_update_ends_with_the_exchange():
    recorded = build(run())
    updates = np.flatnonzero(recorded.name == recorded.names.index(UPDATE))
    assert recorded.rank[updates].tolist() == [0, 1]
    marks = StepMarks((1,), (0, 1), recorded.marks.first, updates[None])
    ending = replace(recorded, marks=marks)
    assert longer_ms(shared(run(), ending), ending) == pytest.approx([-2.5 + 40.0], abs=0.01)


def test_a_job_without_a_recorded_update_is_declined():
    with pytest.raises(Declined, match="no update of rank 0 was recorded in step 1"):
        shared(run(last="update"))


def test_if_the_first_of_two_ranks_is_late_gloo_sends_the_parts_in_turn():
    """Updates of 9 and 5 ms become 4.5 and 2.5 ms; a part of 2 MiB takes 40 ms."""
    for last_ms, exchange_ms in (((9, 5), 2 * 40.0), ((5, 9), 40.0)):
        of = unlike(*last_ms)
        assert longer_ms(shared(of), build(of)) == pytest.approx([-4.5 + exchange_ms], abs=0.01)


def test_of_more_ranks_the_middle_is_predicted_and_both_ends_are_in_the_interval():
    """A link sends 4/3 of 4 MiB in 80 ms: two thirds of them in 40 ms; three parts in turn, in two rounds each, in 120."""
    of = unlike(5, 5, 5)
    found = changed(of)
    assert longer_ms(found.dfg, build(of)) == pytest.approx([-5 * 2 / 3 + 80.0], abs=0.01)
    assert found.margin_ns == pytest.approx(40e6, rel=1e-3)
