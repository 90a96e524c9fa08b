"""The time of batches of another size, worked by hand."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.samples.batch_time import with_batch_time
from esprof.replay.whatif.scenario import BatchChange, Scenario
from tests.cases.graph import MAIN, launched, load_call, numbered, op, run_of
from tests.cases.messages import message
from tests.cases.sharding import ddp_run
from tests.unit.replay.whatif.samples.test_sized_work import ENGINE, sample_step


def answers(rows, *specs):
    run = run_of({0: rows})
    return what_if(run, build(run), specs)


def test_work_on_samples_grows_and_all_else_stays():
    # Of the product in the backward pass, 300 to 490 µs.
    double, half = answers(sample_step(), "batch=2x", "batch=0.5x")
    assert -double.saving_us == pytest.approx(370 + 395, abs=5)
    assert half.saving_us == pytest.approx((370 + 395) / 2, abs=5)


def test_batches_to_be_loaded_grow():
    (double,) = answers([*sample_step(), load_call(2400, 2600, worker=False)], "batch=2x")
    assert -double.saving_us == pytest.approx(370 + 395 + 200, abs=5)


def test_unrecorded_workers_are_assumed_to_keep_up():
    (double,) = answers([*sample_step(), load_call(2400, 2410)], "batch=2x")
    assert "assumes that they keep up" in double.note


def test_each_part_of_a_batch_needs_all_that_does_not_grow():
    """All passes take 1900 µs, of which 765 grow."""
    two, same_parts, four = answers(sample_step(), "accumulate=2", "accumulate=2,batch=2x", "accumulate=4")
    assert -two.saving_us == pytest.approx(1900 - 765, abs=5)
    assert -same_parts.saving_us == pytest.approx(1900, abs=5)
    assert -four.saving_us == pytest.approx(3 * (1900 - 765), abs=5)


def test_batches_in_parts_are_loaded_as_a_whole():
    (two,) = answers([*sample_step(), load_call(2400, 2600, worker=False)], "accumulate=2")
    assert -two.saving_us == pytest.approx(1900 - 765, abs=5)


def test_parts_of_a_batch_that_has_parts_already_are_declined():
    again = [
        numbered("aten::linear", 2400, 50, 2),
        numbered(f"{ENGINE}AddmmBackward0", 2500, 100, 2, forward_thread=MAIN),
    ]
    (found,) = answers([*sample_step(), *again], "accumulate=2")
    assert "several backward passes" in found.reason


def test_what_may_not_grow_is_the_margin():
    run = run_of({0: sample_step()})
    dfg = build(run)
    found = with_batch_time(Scenario(run, Blame(dfg, (1,)), dfg), BatchChange(factor=3.0))
    # Of a product of 500 µs 190 may be for its parameters.
    assert found.margin_ns == pytest.approx(2 * 190_000 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (launched("gemm", 2500, 2510, 100, 1), "kernels take for another number of samples"),
        (message("send", 0, 2400, 2500), "use microbatches="),
        ([op("_c10d_functional::all_reduce", 2400, 10)], "tensor parallelism"),
    ],
)
def test_what_one_run_does_not_tell_is_declined(rows, reason):
    (found,) = answers([*sample_step(), *rows], "batch=2x")
    assert reason in (found.reason or "")


def test_each_part_of_a_batch_computes_its_layers_again():
    run = ddp_run()
    dfg = build(run)
    again, two, both = (
        -one.saving_us for one in what_if(run, dfg, ["recompute=full", "accumulate=2", "accumulate=2,recompute=full"])
    )
    # Its operations have no shapes: none takes less time for half of the samples.
    assert (again, both - two) == pytest.approx((20_000, 40_000))
