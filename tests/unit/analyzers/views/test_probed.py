"""Figures of synthetic probes: rates, bus bandwidth, peaks, and overlap with a backward pass."""

import msgspec
import pytest

from esprof.analyzers.views.probed import probed
from esprof.reports.terminal.probed import draw_probed, slowest_of_alike, title
from esprof.reports.terminal.screen import Screen
from esprof.run.probes import Condition, NotMeasured, Point, Sweep, VariedStep
from tests.cases.probed import link, points, probes, slowing

MIB = 1 << 20


def curve(answer, kind, name):
    return next(one for one in answer.curves if (one.kind, one.name) == (kind, name))


def alone(kind, name, took_ns, *, rank=0, unit="bytes", sizes=(MIB, 4 * MIB), **more):
    found = points(sizes, took_ns)
    return Sweep(kind=kind, name=name, unit=unit, ranks=(rank,), device="cuda", points=found, **more)


def test_the_rate_is_measured_at_the_largest_size():
    answer = probed(probes(link(0, 10.0)))
    found = curve(answer, "collective", "all_reduce")
    assert found.rate == pytest.approx(1e9 / 10)
    assert found.bus_bytes_per_s == pytest.approx(found.rate)  # 2 (p - 1) / p of two ranks
    assert found.line.us_per_mib == pytest.approx(10 * MIB / 1e3, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "factor"), [("all_gather", 0.5), ("all_to_all", 0.5), ("broadcast", 1), ("send_recv", 1)]
)
def test_bus_bandwidth_is_a_fraction_of_the_rate(name, factor):
    found = curve(probed(probes(link(0, 10.0, name=name))), "collective", name)
    assert found.bus_bytes_per_s == pytest.approx(found.rate * factor)


@pytest.mark.parametrize(
    ("device", "peak"), [("NVIDIA A100-SXM4-80GB", 50.0), ("NVIDIA Unheard-of", None), (None, None)]
)
def test_matrix_products_are_compared_with_a_known_data_sheet(device, peak):
    product = alone("matmul", "bfloat16", lambda flop: flop / 156e12 * 1e9, unit="flop", sizes=(10**12, 10**13))
    known = msgspec.structs.replace(probes(product), conditions=(Condition(rank=0, device=device),))
    assert curve(probed(known), "matmul", "bfloat16").peak_pct == peak


def test_compute_overlapping_communication_reports_both_slowdowns():
    found = probed(probes(link(0, 20.0), *slowing(20.0, 5.0)))
    overlap = next(one for one in found.beside if one.size == MIB and one.rank == 0)
    assert overlap.what == "all_reduce"
    assert overlap.longer_pct == pytest.approx(0, abs=0.1)
    assert overlap.pass_longer_pct == pytest.approx(100 / 3, abs=0.1)
    assert overlap.lost_us_per_mib == pytest.approx(5 * MIB / 1e3, rel=1e-2)
    assert {one.kind for one in found.curves} == {"collective"}


def test_two_concurrent_collectives_are_compared_with_one():
    single = link(0, 10.0)
    pair = msgspec.structs.replace(link(0, 20.0), beside="itself")
    (both,) = probed(probes(single, pair)).two_at_once
    assert both.times_one == pytest.approx(2)


def test_the_slowest_of_equal_measurements_is_shown():
    sweeps = [alone("copy", "memory", lambda size, rank=rank: size * (1 + rank), rank=rank) for rank in (0, 1, 2)]
    ((slowest, count),) = slowest_of_alike(probed(probes(*sweeps)).curves)
    assert (slowest.ranks, count) == ((2,), 3)


def test_the_table_is_complete_and_escapes_foreign_names():
    hostile = "\x1b[31m[bold]::error::"
    whole = msgspec.structs.replace(
        probes(link(0, 10.0), alone("encode", hostile, lambda size: size), *slowing(10.0, 1.0)),
        steps=(VariedStep(rank=0, device=hostile, setting=hostile, samples_ns=(5, 6, 7), parts_ns={"data": 1}),),
        left_out=(NotMeasured(hostile, hostile), NotMeasured("more", "time", by_budget=True)),
        conditions=(Condition(rank=0, device=hostile, unknown=hostile),),
    )
    text = draw_probed(probed(whole), Screen(width=80))
    assert "\x1b" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80
    assert "1 curve cut short" in text


def test_a_point_with_one_repeat_is_summarized():
    single = Sweep(
        kind="launch",
        name="operation",
        unit="calls",
        ranks=(0,),
        device="cpu",
        points=(Point(size=1, samples_ns=(7,)),),
    )
    answer = probed(probes(single))
    assert title(answer.curves[0]) == "operator launch"
    assert draw_probed(answer)


def test_congestion_controls_are_shown_with_that_of_the_hosts():
    sweeps = [
        msgspec.structs.replace(link(0, rate), kind="congestion", name=f"all_reduce:{control}")
        for control, rate in (("reno", 10.0), ("bbr", 5.0))
    ]
    found = msgspec.structs.replace(probes(*sweeps), conditions=(Condition(rank=0, congestion="reno", unknown="no"),))
    text = draw_probed(probed(found))
    assert "by TCP congestion control" in text
    assert "all_reduce:bbr" in text
    assert "congestion control of the hosts: reno" in text
    assert "congestion control" not in draw_probed(probed(probes(link(0, 10.0))))
