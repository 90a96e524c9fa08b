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
from tests.cases.gloo_buckets import run_with

UPDATE = "Optimizer.step#AdamW.step"


def run(last=UPDATE):
    return run_with((1, 1, 2), (1, 1, 1), last=last)


def shared(of, recorded=None):
    recorded = recorded or build(of)
    return apply(Scenario(of, Blame(recorded, (1,)), recorded), parse("zero=1")).dfg


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
