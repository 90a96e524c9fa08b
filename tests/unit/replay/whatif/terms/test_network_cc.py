"""`network.cc=bbr`: collectives take the measured mean time with another TCP congestion control."""

import msgspec
import pytest

from esprof.core.errors import UsageError
from esprof.replay.building.build import build
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.run.probes import NotMeasured
from tests.cases.gloo_buckets import COMMUNICATION_MS, MS, gloo_collective, run_with
from tests.cases.graph import op, run_of, step
from tests.cases.probed import controlled, on_hosts_with

MIB = 1 << 20
CUBIC, BBR = controlled("cubic", 100, 100, 100), controlled("bbr", 50, 50, 50)


def measured(*sweeps, now=("cubic", "cubic"), **more):
    return on_hosts_with(*now, sweeps=sweeps, **more)


def answer(found, spec="network.cc=bbr", run=None):
    run = run or run_with((1, 1, 1, 1), (4,))
    run.probes = found
    (one,) = what_if(run, build(run), [spec])
    return one


def test_an_all_reduce_takes_the_ratio_of_the_measured_times():
    """It took 80 ms, and nothing hides it."""
    assert answer(measured(CUBIC, BBR)).saving_us == pytest.approx(4 * COMMUNICATION_MS * MS / 2)
    assert answer(measured(CUBIC, controlled("bbr", 125, 125, 125))).saving_us == pytest.approx(-20 * MS)


def test_a_few_repeats_that_lost_packets_count():
    """The median is that of cubic, the mean twice as long."""
    assert answer(measured(CUBIC, controlled("bbr", 100, 100, 400))).saving_us == pytest.approx(-80 * MS)


def test_collectives_of_several_sizes_have_the_ratio_of_their_size():
    """With bbr 1 MiB takes 10 ms more than with cubic (25 ms), and 4 MiB as long: a bucket of 1 MiB of 20 ms takes 28."""
    small, large = (
        msgspec.structs.replace(point, samples_ns=(took,))
        for point, took in zip(BBR.points, (35_000_000, 100_000_000), strict=True)
    )
    bbr = msgspec.structs.replace(BBR, points=(small, large))
    assert answer(measured(CUBIC, bbr), run=run_with((1,), (1,))).saving_us == pytest.approx(-8 * MS)
    assert answer(measured(CUBIC, bbr), run=run_with((1, 1, 1, 1), (4,))).saving_us == pytest.approx(0, abs=1)
    # Smaller ones than measured have the ratio of the smallest.
    assert answer(measured(CUBIC, bbr), run=run_with((0.25,), (1,))).saving_us == pytest.approx(-2 * MS)


def test_it_holds_together_with_other_terms():
    """Half the bytes in half the time, and twice as fast."""
    both = answer(measured(CUBIC, BBR), "network.cc=bbr,overlap=perfect")
    assert both.saving_us >= answer(measured(CUBIC, BBR)).saving_us


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "no TCP congestion control was measured (esprof probe)"),
        (measured(), "no TCP congestion control was measured (esprof probe)"),
        (
            measured(left_out=(NotMeasured("TCP congestion controls", "the job uses nccl"),)),
            "(esprof probe): the job uses nccl",
        ),
        (measured(CUBIC, controlled("reno", 9, 9, 9)), "bbr was not measured, only cubic, reno"),
        (
            measured(CUBIC, left_out=(NotMeasured("TCP congestion control bbr", "the kernel refuses bbr: no"),)),
            "the kernel refuses bbr: no",
        ),
        (measured(CUBIC, BBR, now=("bbr", "bbr")), "bbr is the TCP congestion control of the hosts already"),
        (measured(CUBIC, BBR, now=("cubic", "reno")), "different TCP congestion controls: cubic, reno"),
        (measured(CUBIC, BBR, now=(None, None)), "an unknown one was not measured"),
        (measured(CUBIC, controlled("bbr", 9, 9, 9, ranks=(0, 1, 2))), "all_reduce among 2 ranks was not measured"),
        (measured(CUBIC, controlled("bbr", 9, 9, 9, kind="all_gather")), "was not measured with bbr"),
        (
            measured(*(controlled(one, 9, 9, 9, size=MIB) for one in ("cubic", "bbr"))),
            "all_reduce: 4.0 MiB is outside the measured range",
        ),
    ],
)
def test_it_is_declined_without_both_measurements(found, reason):
    one = answer(found)
    assert not one.answered
    assert reason in one.reason


def test_collectives_of_unknown_size_are_declined():
    rows = [step(1, 0, 9 * MS), op("before", 0, MS), *gloo_collective(MS, MS + 40, 2 * MS, 0), op("after", 4 * MS, MS)]
    one = answer(measured(CUBIC, BBR), run=run_of({0: rows, 1: rows}))
    assert "no collective between CPUs of known size" in one.reason


@pytest.mark.parametrize("value", ["", "BBR", "bbr2x!", "a" * 16, "2x", "../x"])
def test_what_is_no_name_is_a_usage_error(value):
    with pytest.raises(UsageError, match="name of a TCP congestion control"):
        parse(f"network.cc={value}")
