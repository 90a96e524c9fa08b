"""Formatting of figures."""

import msgspec
import pytest

from esprof.analyzers.evidence import Evidence, by_rank, by_step
from esprof.analyzers.finding import Throughput
from esprof.core import readable
from esprof.reports import units
from esprof.run.overhead import Overhead
from tests.cases import report as case


@pytest.mark.parametrize(
    ("most", "text"), [(1, "a and 2 more"), (2, "a, b and 1 more"), (3, "a, b, c"), (4, "a, b, c")]
)
def test_of_many_texts_the_first_are_listed(most, text):
    assert readable.listed(["a", "b", "c"], most) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (62_000_000.0, "62.0 s"),
        (9_999_000.0, "9,999 ms"),
        (999_960.0, "1,000 ms"),
        (9_996.0, "10.0 ms"),
        (-0.0, "0 ms"),
        (1_057_400.0, "1,057 ms"),
        (120_340.0, "120.3 ms"),
        (3_049.0, "3.05 ms"),
        (600.0, "0.60 ms"),
        (12.0, "0.012 ms"),
        (0.0, "0 ms"),
        (None, "–"),
    ],
)
def test_durations_have_a_readable_precision(us, text):
    assert units.duration(us) == text


@pytest.mark.parametrize(
    ("value", "text"), [(34.21, "34.2 %"), (0.0, "0.0 %"), (0.01, "<0.1 %"), (-0.01, ">−0.1 %"), (-2.34, "−2.3 %")]
)
def test_a_small_share_is_not_shown_as_none(value, text):
    assert units.pct(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.841, "+0.84 %"), (-1.9, "−1.90 %"), (0.0, "0.00 %"), (-0.0001, "0.00 %")]
)
def test_errors_carry_their_sign(value, text):
    assert units.error_pct(value) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1_048_575, "1.0 MiB"),
        (25 << 20, "25.0 MiB"),
        (3 << 50, "3072.0 TiB"),
        (None, "–"),
    ],
)
def test_sizes(amount, text):
    assert units.size(amount) == text


@pytest.mark.parametrize(
    ("which", "world", "text"),
    [
        ((1,), 4, "rank 1"),
        ((0, 1, 2, 5), 8, "ranks 0–2, 5"),
        ((3, 1), 8, "ranks 1, 3"),
        ((0, 1), 2, "all ranks"),
        ((0,), 1, "rank 0"),
        ((), 4, "the whole job"),
    ],
)
def test_ranks_are_named_in_runs(which, world, text):
    assert units.ranks(which, world) == text


def test_recorded_ranks_are_shown_with_the_world_size():
    assert units.recorded_ranks(8, ()) == "8 ranks"
    assert units.recorded_ranks(1, ()) == "1 rank"
    assert units.recorded_ranks(128, tuple(range(1, 128))) == "1 of 128 ranks"


def test_stretches_are_runs_of_consecutive_numbers():
    assert readable.stretches([5, 0, 1, 2, 2]) == [range(3), range(5, 6)]
    assert readable.stretches([]) == []


def test_a_long_list_names_its_first_runs_and_counts_the_rest():
    assert readable.numbered("step", range(0, 60, 2)) == "steps 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 20 more"
    assert readable.numbered("step", range(1_000)) == "steps 0–999"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(4.2, 8.7, "4 to 9 %"), (-3.0, 2.2, "at most 3 %"), (0.4, 0.8, "at most 1 %"), (-9.0, 0.0, "at most 1 %")],
)
def test_overhead_is_shown_as_an_interval(low, high, text):
    assert units.overhead(Overhead(pct=(low + high) / 2, low_pct=low, high_pct=high)) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.1 %"), (0.84, "0.9 %"), (3.0, "3.0 %")])
def test_an_error_is_bounded_from_above(value, text):
    assert units.bound_pct(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (36_810, 44_990, "36.8 to 45.0 ms"),
        (0, 32_800, "0 to 32.8 ms"),
        (-700, 500, "-0.70 to 0.50 ms"),
        (9_800_000, 12_100_000, "9,800 ms to 12.1 s"),
        (0, 12_100_000, "0 to 12.1 s"),
        (None, 12, "–"),
    ],
)
def test_an_interval_is_shown_by_its_bounds(low, high, text):
    assert units.interval(low, high) == text


@pytest.mark.parametrize(
    ("us", "low", "text"),
    [
        (10_800, 2_000, "10.8 ms (2.00 to 32.8 ms)"),
        (10_800, 0, "0 to 32.8 ms"),
        (0, 0, "–"),
    ],
)
def test_a_saving_is_shown_with_its_interval(us, low, text):
    found = case.findings()[0]
    priced = msgspec.structs.replace(found, saving_us=us, saving_low_us=low, saving_high_us=32_800)
    assert units.saving(priced) == text


def test_a_point_in_time_is_utc():
    assert units.when(1_767_225_600_000_000_000) == "2026-01-01 00:00 UTC"
    assert units.when(None) == "–"


def test_unknown_rates_are_left_out():
    assert units.rates(Throughput(steps_per_s=8.314, samples_per_s=None, tokens_per_s=17_024.2)) == [
        "8.31 steps/s",
        "17,024 tokens/s",
    ]


@pytest.mark.parametrize(
    ("name", "seen", "shown"),
    [
        ("late_by", Evidence(42_500_000, "ns"), ("late by", "42.5 ms")),
        ("limit", Evidence(25 << 20, "bytes"), ("limit", "25.0 MiB")),
        ("limit", Evidence(None, "bytes"), ("limit", "unknown")),
        ("rate", Evidence(25 << 20, "bytes/s"), ("rate", "25.0 MiB/s")),
        ("host_share", by_rank({0: 0.042}, "share"), ("host share", "rank 0: 4.2 %")),
        ("took", by_step({4: 369_000_000, 5: None}, "ns"), ("took", "step 4: 369.0 ms, step 5: unknown")),
        ("saving", Evidence({"slow CPU": 1_000_000}, "ns", "cause"), ("saving", "slow CPU: 1.00 ms")),
        ("entered_by", Evidence((0, 1, 2, 5), "ranks"), ("entered by", "0–2, 5")),
        ("missing", Evidence((), "ranks"), ("missing", "none")),
        ("collectives", Evidence(1_240), ("collectives", "1,240")),
        ("launches", Evidence(12.5), ("launches", "12.5")),
        ("pinned", Evidence(False), ("pinned", "no")),
        ("where", Evidence("train.py(31): <module>"), ("where", "train.py(31): <module>")),
    ],
)
def test_evidence_is_shown_in_its_unit(name, seen, shown):
    assert units.evidence({name: seen, "outliers": by_step({}, "ns")}) == [shown]


def test_long_evidence_is_cut_with_a_note():
    ((_, text),) = units.evidence({"peaks": by_rank({rank: rank for rank in range(10)})})
    assert text.endswith("rank 7: 7, and 2 more")
