"""`network=600Gbit`: the closed form of an all-reduce that runs concurrently with compute, and what bounds the step."""

from itertools import pairwise

import pytest

from esprof.core.errors import UsageError
from esprof.replay.building.build import build
from esprof.replay.replayed import answer
from esprof.replay.whatif.communication.links import DEFAULT_LATENCY
from esprof.replay.whatif.communication.rates import Rate
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.terms.network import PRESETS
from tests.cases.gloo_buckets import ELEMENTS, MS, gloo_collective
from tests.cases.graph import call, launched, nccl, op, run_of, step

US = 1_000
ELEMENTS_SENT = 1_000_000
BYTES = 4 * ELEMENTS_SENT
LATENCY = DEFAULT_LATENCY / US
"""Of collectives of a single size, µs."""
STARTS, LAUNCHED = 40, 30
"""When the compute kernel and the all-reduce start, µs."""


def overlapped(compute, reduce, ranks=2):
    """A step of `ranks` ranks that compute and reduce 4 MB at once, µs each, and wait for both. 0: do not compute."""
    end = max(STARTS + compute, LAUNCHED + reduce) + 5
    args = {"collective": "allreduce", "in_elements": ELEMENTS_SENT, "dtype": "Float"}
    rows = [
        step(1, 0, end + 20),
        op("aten::mm", 0, 10),
        *nccl(12, LAUNCHED, LAUNCHED + reduce, 1, **args),
        *(launched("gemm", 20, STARTS, compute, 2) if compute else ()),
        call("cudaDeviceSynchronize", 30, end - 30, 3),
        op("aten::mm", end, 20),
    ]
    return run_of(dict.fromkeys(range(ranks), rows))


def predicted_us(run, *specs):
    return [one.predicted_us for one in what_if(run, build(run), list(specs))]


def closed_form_us(compute, gbit, ranks=2):
    """The step: the later of both, and what follows."""
    wire = 2 * (ranks - 1) / ranks * BYTES * 8 / (gbit * 1e9) * 1e6 if gbit else -LATENCY
    return max(STARTS + compute, LAUNCHED + LATENCY + wire) + 25


@pytest.mark.parametrize(("compute", "reduce", "ranks"), [(1000, 3000, 2), (3000, 1000, 2), (1000, 3000, 4)])
def test_a_step_takes_the_longer_of_compute_and_transfer(compute, reduce, ranks):
    run = overlapped(compute, reduce, ranks)
    rates = [5, 10, 20, 40, 200, 1000]
    found = predicted_us(run, *(f"network={rate}Gbit" for rate in rates), "communication=0")
    expected = [closed_form_us(compute, rate, ranks) for rate in (*rates, None)]
    assert found == pytest.approx(expected, rel=2e-3)
    assert all(slower >= faster for slower, faster in pairwise(found))


def test_the_rate_of_the_recorded_link_changes_nothing():
    run = overlapped(1000, 3000)
    gbit = BYTES * 8 / (3000 - LATENCY) / 1e3
    assert predicted_us(run, f"network={gbit:.9f}Gbit", "network=1x") == pytest.approx([3055] * 2)


def note(run, spec):
    (found,) = answer(run, [spec]).what_if
    return found.note


def test_the_bound_and_the_saturating_rate():
    run = overlapped(1000, 3000)
    assert "bound by the link" in note(run, "network=12Gbit")
    found = note(run, "network=NDR")
    assert "bound by compute" in found
    # 1 % of the 1,065 µs without communication may remain.
    allowed = 1.01 * closed_form_us(1000, None) - 25 - LAUNCHED - LATENCY
    (scenario,) = answer(run, ["network=NDR"]).what_if
    assert scenario.link.bound == "compute"
    saturating = scenario.link.saturating_bits_per_s / 1e9
    assert f"from {saturating:.1f} Gbit/s on" in found
    assert saturating == pytest.approx(BYTES * 8 / allowed / 1e3, rel=0.06)
    assert predicted_us(run, f"network={saturating * 1.01}Gbit")[0] <= 1.01 * closed_form_us(1000, None)


def test_latency_bounds_what_no_rate_can_help():
    found = note(overlapped(0, 100), "network=1000Tbit")
    assert "bound by latency and CPU work of collectives" in found
    assert "no rate brings steps within 1 %" in found


def test_other_terms_hold_at_each_rate():
    assert "bound by the link" in note(overlapped(3000, 1000), "gpu=100x,network=20Gbit")
    assert "bound by compute" in note(overlapped(3000, 1000), "network=20Gbit")


def test_a_speed_up_has_no_such_note():
    assert "bound" not in (note(overlapped(1000, 3000), "network=2x") or "")


def test_between_cpus_the_bytes_take_the_time_of_the_rate():
    rows = [
        step(1, 0, 30 * MS),
        op("before", 0, 5 * MS),
        *gloo_collective(5 * MS, 5 * MS + 40, 20 * MS, ELEMENTS, "all_reduce"),
    ]
    rows.append(op("after", 25 * MS + 50, 5 * MS - 50))
    run = run_of({0: rows, 1: rows})
    (now,) = predicted_us(run, "network=1x")
    bits = 4 * ELEMENTS * 8
    slow, fast = predicted_us(run, f"network={bits / 20e3}Mbit", f"network={bits / 5e3}Mbit")
    assert slow == pytest.approx(now)
    assert fast == pytest.approx(now - 15 * MS)


def test_collectives_of_unknown_size_decline_a_rate():
    rows = [
        step(1, 0, 200),
        op("aten::mm", 0, 10),
        *nccl(12, 20, 100, 1),
        call("cudaDeviceSynchronize", 30, 80, 2),
        op("aten::mm", 110, 90),
    ]
    run = run_of({0: rows, 1: rows})
    by_rate, by_factor = what_if(run, build(run), ["network=1Gbit", "network=2x"])
    assert not by_rate.answered
    assert "no sizes of its collectives" in by_rate.reason
    assert by_factor.answered


@pytest.mark.parametrize(
    ("value", "gbit"),
    [("600Gbit", 600), ("0.6Tbit", 600), ("100Mbit/s", 0.1), *((name, rate) for name, rate in PRESETS.items())],
)
def test_ways_to_write_a_rate(value, gbit):
    (term,) = parse(f"network={value}")
    assert term.value == Rate(gbit * 1e9)


@pytest.mark.parametrize("value", ["600", "2x"])
def test_a_number_alone_is_a_speed_up(value):
    (term,) = parse(f"network={value}")
    assert isinstance(term.value, float)


@pytest.mark.parametrize(
    "value", ["600GB", "Gbit", "-1Gbit", "0Gbit", "0.5Mbit", "1001Tbit", "nanGbit", "1e3Gbit", "ndr", "²Gbit"]
)
def test_what_is_no_rate_is_a_usage_error(value):
    with pytest.raises(UsageError, match="is not a"):
        parse(f"network={value}")


def test_a_rate_and_a_speed_up_exclude_each_other():
    with pytest.raises(UsageError, match="exclude each other"):
        parse("network=2x,network=600Gbit")
