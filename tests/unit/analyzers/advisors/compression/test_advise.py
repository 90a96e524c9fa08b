"""Advice on compression for a job made by hand: four buckets of 1 MiB, each 20 ms on the link, a gradient every 10 ms."""

import pytest
from msgspec.structs import replace

from esprof.analyzers import recommend_compression
from esprof.core.errors import EsprofError
from esprof.core.plan import check
from esprof.replay.engine import timeline
from esprof.reports.terminal.compression import draw_compression
from tests.cases.compression import MIB, exchange
from tests.cases.gloo_buckets import ELEMENTS, run_with
from tests.cases.probed import link, probes, slowing

CAREFUL = 0.1
PER_BYTE = 20e6 / MIB


def advised(*sweeps, buckets=(1, 1, 1, 1), steps_like=run_with):
    run = steps_like((1,) * sum(buckets), buckets)
    run.probes = probes(link(0, PER_BYTE), *(one for sweep in sweeps for one in sweep))
    return recommend_compression(run, CAREFUL)


def test_a_cheap_codec_is_advised_where_buckets_wait():
    advice = advised(exchange("half", 0.5, 3, sent=MIB // 2), exchange("slow", 30, 50))
    codecs = [one.codec for one in advice.decision]
    assert codecs[-1] == "half"
    assert (advice.gap_kind, advice.gap_pct) == ("exact", 0)  # 81 choices.
    assert advice.baselines["zero cost"] <= advice.value <= advice.baselines["half"] < advice.baselines["now"]
    assert advice.plan is not None
    body = advice.plan.parts.compression.body
    check(advice.plan)
    assert [(one.index, one.codec, one.elements) for one in body.buckets] == [
        (number, codec, (ELEMENTS,)) for number, codec in enumerate(codecs)
    ]
    assert body.buckets[-1].sent_bytes == MIB // 2
    assert advice.plan.parts.compression.changes_bits


def test_nothing_is_advised_where_no_codec_helps():
    advice = advised(exchange("slow", 30, 50))
    assert advice.plan is None
    assert {one.codec for one in advice.decision} == {"none"}
    assert advice.value == pytest.approx(advice.baselines["now"])


def test_what_loses_too_much_is_left_out():
    advice = advised(exchange("lossy", 0.1, 1, vnmse=0.9), exchange("half", 0.5, 10))
    assert "0.9" in advice.left_out["lossy"]
    assert {one.codec for one in advice.decision} == {"half"}


def test_what_the_gradient_may_lose_is_shared_out():
    """Four buckets of the same size: one alone may lose 0.3 of its square for the whole to lose less than 0.1."""
    advice = advised(exchange("lossy", 0.1, 1, vnmse=0.3), exchange("half", 0.5, 10))
    assert sorted(one.codec for one in advice.decision if one.codec != "none").count("lossy") == 1
    assert 0.3 / 4 <= advice.vnmse <= CAREFUL
    assert "lossy" not in advice.baselines
    assert "0.3" in advice.left_out["lossy for all"]
    assert advice.gap_kind == "exact"


@pytest.mark.slow
def test_many_choices_are_searched():
    advice = advised(
        exchange("half", 0.5, 10), exchange("third", 3, 8), exchange("lossy", 0.1, 1, vnmse=0.3), buckets=(1,) * 7
    )
    assert [one.codec for one in advice.decision].count("lossy") == 2  # A third one would make it 0.13.
    assert advice.gap_kind == "lower_bound"
    assert advice.value <= min(advice.baselines["half"], advice.baselines["third"]) + 1e-3
    assert advice.value <= advice.baselines["zero cost"] * (1 + advice.gap_pct / 100) * (1 + 1e-6)


def test_it_rests_on_replay(monkeypatch):
    before = advised(exchange("half", 0.5, 10)).value
    real = timeline.longest_path.run

    def slower(dfg, dur_ns, residual_ns):
        names = {code for code, name in enumerate(dfg.names) if name.startswith("encode gradient")}
        return real(dfg, dur_ns + 3_000_000 * (dfg.name == max(names, default=-1)), residual_ns)

    monkeypatch.setattr(timeline.longest_path, "run", slower)
    assert advised(exchange("half", 0.5, 10)).value > before + 500


def test_a_run_without_a_probe_is_told_what_it_lacks():
    with pytest.raises(EsprofError, match="esprof probe") as raised:
        recommend_compression(run_with((1, 1), (1, 1)), CAREFUL)
    assert "--probe" in raised.value.remedy


def test_what_is_drawn():
    drawn = draw_compression(advised(exchange("half", 0.5, 3, sent=MIB // 2), exchange("lossy", 0.1, 1, vnmse=0.9)))
    assert drawn.startswith("A step would take ")
    assert "all choices were replayed; none is shorter" in drawn
    assert "lossy: loses 0.9 of the square" in drawn
    assert "No change recommended" in draw_compression(advised(exchange("slow", 30, 50)))


def test_all_was_tried_only_where_that_holds_for_buckets_of_every_size():
    """An exchange takes as long for one MiB as for seven, so the recorded bucket stays; it has four choices, and seven
    buckets of 1 MiB have 4^7: the first alone prove nothing."""
    sweeps = [one for codec, ms in (("half", 65), ("third", 66), ("fourth", 67)) for one in exchange(codec, 0.5, ms)]
    of_any_size = [replace(one, points=(*one.points, replace(one.points[0], size=7 * MIB))) for one in sweeps]
    advice = advised(of_any_size, buckets=(7,))
    assert advice.bucket_mb is None
    assert (advice.gap_kind, advice.gap_pct > 0) == ("lower_bound", True)


def test_no_choice_is_below_the_bound():
    """Though the work beside transfers gains where a codec takes less of the CPUs' time."""
    beside = slowing(PER_BYTE, PER_BYTE / 4)
    advice = advised(exchange("half", 0.5, 25, coding_ms=2, cpu_ms=1), exchange("slow", 30, 50, cpu_ms=9), beside)
    nothing_sent, *steps = (advice.baselines.pop("no exchange"), advice.value, *advice.baselines.values())
    assert nothing_sent <= advice.baselines["zero cost"] == min(steps)
