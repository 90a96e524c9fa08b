"""Figures as people read them."""

import pytest

from esprof.analyzers.finding import Throughput
from esprof.reports import units


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (1_057_400.0, "1,057 ms"),
        (120_340.0, "120.3 ms"),
        (3_049.0, "3.05 ms"),
        (600.0, "0.60 ms"),
        (12.0, "0.012 ms"),
        (0.0, "0 ms"),
        (None, "–"),
    ],
)
def test_milliseconds_keep_the_figures_that_count(us, text):
    assert units.ms(us) == text


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
    ("amount", "text"), [(0, "0 B"), (1023, "1023 B"), (25 << 20, "25.0 MiB"), (3 << 50, "3072.0 TiB"), (None, "–")]
)
def test_sizes(amount, text):
    assert units.size(amount) == text


@pytest.mark.parametrize(
    ("which", "world", "text"),
    [
        ((1,), 4, "rank 1"),
        ((0, 1, 2, 5), 8, "ranks 0–2, 5"),
        ((3, 1), 8, "ranks 1, 3"),
        ((0, 1), 2, "all 2 ranks"),
        ((0,), 1, "rank 0"),
        ((), 4, "the job"),
    ],
)
def test_ranks_are_named_in_runs(which, world, text):
    assert units.ranks(which, world) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.1 %"), (0.84, "0.9 %"), (3.0, "3.0 %")])
def test_an_error_is_bounded_from_above(value, text):
    assert units.bound_pct(value) == text


def test_a_point_in_time_is_utc():
    assert units.when(1_767_225_600_000_000_000) == "2026-01-01 00:00 UTC"
    assert units.when(None) == "–"


def test_rates_leave_out_what_is_not_known():
    assert units.rates(Throughput(steps_per_s=8.314, samples_per_s=None, tokens_per_s=17_024.2)) == [
        "8.31 steps/s",
        "17,024 tokens/s",
    ]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("late_by_us", 42_500.0, ("late by", "42.5 ms")),
        ("wait_ns", 42_500_000, ("wait", "42.5 ms")),
        ("share_of_step_pct", 34.2, ("share of step", "34.2 %")),
        ("late_ms_per_step", {"2": 51.8}, ("late per step", "rank 2: 51.8 ms")),
        (
            "outlier_steps",
            {"4": {"ms": 369.0, "ms_without_data": 144.2}},
            ("outlier steps", "step 4: 369.0 ms, without data: 144.2 ms"),
        ),
        ("host_share", {"0": 0.042}, ("host share", "rank 0: 4.2 %")),
        ("bucket_bytes", 25 << 20, ("bucket bytes", "25.0 MiB")),
        ("samples_per_s", 1_064.0, ("samples", "1,064/s")),
        ("collectives", 1_240, ("collectives", "1,240")),
        ("pinned", False, ("pinned", "no")),
        ("prefetch", None, ("prefetch", "not known")),
        ("frames", [], ("frames", "none")),
        ("by_rank_us", [600.0, 41_200.0], ("by rank", "0.60 ms, 41.2 ms")),
        ("by_rank_us", {"0": 600.0, "1": 41_200.0}, ("by rank", "rank 0: 0.60 ms, rank 1: 41.2 ms")),
        ("largest", [{"group": "0", "size_bytes": 1 << 20}], ("largest", "group: 0, size bytes: 1.0 MiB")),
        ("where", "train.py(31): <module>", ("where", "train.py(31): <module>")),
    ],
)
def test_evidence_takes_its_unit_from_its_key(key, value, shown):
    assert units.evidence(key, value) == shown


def test_long_evidence_is_cut_and_says_so():
    _, text = units.evidence("ranks", list(range(20)))
    assert text == "0, 1, 2, 3, 4, 5, 6, 7, and 12 more"
