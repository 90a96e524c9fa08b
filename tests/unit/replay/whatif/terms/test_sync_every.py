"""Models that ranks train apart, worked by hand: 2 ranks, gradients of 4 MiB that are ready after 30 ms.

A step has a backward pass of 30 ms, three copies of 1 ms and an update of 5 ms. All-reduces take 20 ms per MiB, together 80.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from esprof.core.errors import UsageError
from esprof.replay.building.build import build
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import replay
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.gradients.buckets import MIB
from esprof.replay.whatif.gradients.local_steps import averaging_steps
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Declined, Scenario
from tests.cases.gloo_buckets import EVALUATE, ddp_step, gloo_collective
from tests.cases.graph import Row, launched, run_of
from tests.cases.probed import link, probes

WORK_MS, ALL_REDUCE_MS = 38.0, 80.0
UPDATE = "Optimizer.step#SGD.step"


def rank(steps: int, last: str = UPDATE) -> list[Row]:
    rows = []
    for number in range(steps):
        first, *others = ddp_step((1, 1, 2), (1, 1, 1), last=last)
        at = number * first.dur
        first = msgspec.structs.replace(first, name=f"ProfilerStep#{number + 1}")
        rows += [msgspec.structs.replace(row, ts=row.ts + at) for row in (first, *others)]
    return rows


def run(steps: int = 4, ranks: int = 2, **how):
    return run_of({number: rank(steps, **how) for number in range(ranks)})


def apart(of, every: int, recorded=None):
    recorded = recorded or build(of)
    scenario = Scenario(of, Blame(recorded, recorded.marks.steps), recorded)
    return apply(scenario, parse(f"sync_every={every}")).dfg


def steps_ms(dfg) -> list[float]:
    return (replay(dfg).step_ns() / 1e6).tolist()


def test_each_second_step_averages_the_models():
    assert steps_ms(build(run())) == pytest.approx([96.0] * 4, abs=0.1)
    changed = apart(run(), 2)
    assert steps_ms(changed) == pytest.approx([WORK_MS, WORK_MS + ALL_REDUCE_MS] * 2, abs=0.1)
    averages = changed.of(Cls.COMMUNICATION)
    assert {changed.label(node) for node in np.flatnonzero(averages)} == {"all_reduce"}
    assert changed.bytes[averages].tolist() == [4 * MIB] * 4


@pytest.mark.parametrize("every", [2, 3, 4, 8, 1000])
def test_the_mean_step_holds_its_share_of_an_average(every):
    """Whether or not the window has as many steps, or a multiple of them."""
    assert np.mean(steps_ms(apart(run(), every))) == pytest.approx(WORK_MS + ALL_REDUCE_MS / every, abs=0.1)


def without_sizes(of, steps) -> Dfg:
    """The graph without the size of one all-reduce of rank 0 in each of these steps."""
    recorded = build(of)
    size = recorded.bytes.copy()
    for step in steps:
        mine = recorded.of(Cls.COMMUNICATION) & (recorded.rank == 0) & (recorded.step == step)
        size[np.flatnonzero(mine)[0]] = -1
    return replace(recorded, bytes=size)


def test_steps_in_which_a_size_is_unknown_do_not_count():
    averaged = apart(run(), 2, without_sizes(run(), (1, 3)))
    assert averaged.bytes[averaged.of(Cls.COMMUNICATION)].tolist() == [4 * MIB] * 4
    nowhere = build(run())
    with pytest.raises(Declined, match="sizes of the all-reduces were not recorded"):
        apart(run(), 2, replace(nowhere, bytes=np.full_like(nowhere.bytes, -1)))


def test_averages_are_counted_back_from_the_last_steady_step():
    assert averaging_steps((1, 2, 3, 4, 5, 6, 7), (2, 3, 4, 5, 6), 2) == [6, 4, 2]
    assert averaging_steps((1, 2, 3), (2, 3), 9) == [3]


def test_ranks_that_are_slow_in_turn_do_not_wait_for_each_other_in_between():
    recorded = build(run())
    evaluate = recorded.names.index(f"{EVALUATE}AddmmBackward0")
    dur = recorded.dur_ns.copy()
    for step in recorded.marks.steps:
        turn = (recorded.step == step) & (recorded.rank == step % 2) & (recorded.name == evaluate)
        dur[np.flatnonzero(turn)[0]] += 10_000_000
    slow = replace(recorded, dur_ns=dur)
    assert np.mean(steps_ms(slow)) == pytest.approx(106.0, abs=0.1)
    # Each rank is slow in one of two steps.
    assert np.mean(steps_ms(apart(run(), 2, slow))) == pytest.approx(WORK_MS + 10 / 2 + ALL_REDUCE_MS / 2, abs=0.1)


def test_a_probe_tells_how_long_an_average_takes():
    of = run()
    of.probes = probes(link(50e6, 2.0))
    took_ms = 50 + 4 * MIB * 2.0 / 1e6
    assert np.mean(steps_ms(apart(of, 4))) == pytest.approx(WORK_MS + took_ms / 4, rel=0.01)


def test_other_collectives_stay():
    """A broadcast of buffers in each step, as of DDP with BatchNorm."""
    own = {number: [*rank(2), *gloo_collective(96_100, 96_150, 2_000, 1000, "broadcast")] for number in range(2)}
    changed = apart(run_of(own), 2)
    assert "gloo:broadcast" in {changed.label(node) for node in np.flatnonzero(changed.of(Cls.COMMUNICATION))}


def test_the_answer_says_that_results_change():
    (answer,) = what_if(run(), build(run()), ["sync_every=4"])
    assert answer.answered
    assert answer.predicted_us == pytest.approx(1000 * (WORK_MS + ALL_REDUCE_MS / 4), rel=0.01)
    assert "changes the results of training" in answer.note


def with_gpu():
    return run_of({number: [*rank(1), *launched("kernel", 10.0, 20.0, 30.0, 1)] for number in range(2)})


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (run(last="update"), "no update of rank 0 was recorded"),
        (with_gpu(), "on CPUs only"),
        (run_of({0: [*rank(1)[:1], *rank(1)[-1:]]}), "all-reduces of 0 groups were recorded"),
        (
            run_of({n: [row for row in rank(2) if not row.name.startswith(EVALUATE)] for n in range(2)}),
            "not all steps of rank 0 reduce gradients in the backward pass",
        ),
    ],
)
def test_what_it_cannot_know_is_declined(of, reason):
    with pytest.raises(Declined, match=reason):
        apart(of, 4)


def test_a_model_far_larger_than_what_was_probed_is_declined():
    of = run()
    of.probes = probes(link(50e6, 2.0, sizes=(1024, 2048)))
    with pytest.raises(Declined, match=r"an average of 4\.0 MiB is outside the measured range"):
        apart(of, 4)


@pytest.mark.parametrize("value", ["1", "0", "-2", "1.5", "often", ""])
def test_what_is_no_number_of_steps_is_refused(value):
    with pytest.raises(UsageError):
        parse(f"sync_every={value}")
