"""Advice on compression for a synthetic job: four buckets of 1 MiB, each 20 ms on the link, a gradient every 10 ms."""

import pytest
from msgspec.structs import replace

from esprof.analyzers import recommend
from esprof.analyzers.advisors.recommend import Wanted
from esprof.core.errors import EsprofError
from esprof.core.plan import check
from esprof.replay.engine import timeline
from esprof.reports.terminal.advice.compression import draw_compression
from tests.cases.compression import MIB, exchange
from tests.cases.gloo_buckets import ELEMENTS, run_with
from tests.cases.probed import link, probes, slowing

CAREFUL = 0.1
PER_BYTE = 20e6 / MIB


def advised(*sweeps, buckets=(1, 1, 1, 1), steps_like=run_with):
    run = steps_like((1,) * sum(buckets), buckets)
    run.probes = probes(link(0, PER_BYTE), *(one for sweep in sweeps for one in sweep))
    return recommend(run, "compression", Wanted(max_vnmse=CAREFUL))


def test_a_cheap_codec_is_advised_for_waiting_buckets():
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


def test_nothing_is_advised_if_no_codec_helps():
    advice = advised(exchange("slow", 30, 50))
    assert advice.plan is None
    assert {one.codec for one in advice.decision} == {"none"}
    assert advice.value == pytest.approx(advice.baselines["now"])


def test_a_lossy_codec_is_left_out():
    advice = advised(exchange("lossy", 0.1, 1, vnmse=0.9), exchange("half", 0.5, 10))
    assert "0.9" in advice.left_out["lossy"]
    assert {one.codec for one in advice.decision} == {"half"}


def test_the_allowed_loss_is_distributed_among_buckets():
    """Four buckets of equal size: only one may lose 0.3 of its square if the gradient may lose at most 0.1."""
    advice = advised(exchange("lossy", 0.1, 1, vnmse=0.3), exchange("half", 0.5, 10))
    assert sorted(one.codec for one in advice.decision if one.codec != "none").count("lossy") == 1
    assert 0.3 / 4 <= advice.vnmse <= CAREFUL
    assert "lossy" not in advice.baselines
    assert "0.3" in advice.left_out["lossy for all"]
    assert advice.gap_kind == "exact"


@pytest.mark.slow
def test_a_large_number_of_choices_is_searched():
    advice = advised(
        exchange("half", 0.5, 10), exchange("third", 3, 8), exchange("lossy", 0.1, 1, vnmse=0.3), buckets=(1,) * 7
    )
    assert [one.codec for one in advice.decision].count("lossy") == 2  # A third one would make it 0.13.
    assert advice.gap_kind == "lower_bound"
    assert advice.value <= min(advice.baselines["half"], advice.baselines["third"]) + 1e-3
    assert advice.value <= advice.baselines["zero cost"] * (1 + advice.gap_pct / 100) * (1 + 1e-6)


def test_the_advice_is_based_on_replay(monkeypatch):
    before = advised(exchange("half", 0.5, 10)).value
    real = timeline.longest_path.run

    def slower(dfg, dur_ns, residual_ns):
        names = {code for code, name in enumerate(dfg.names) if name.startswith("encode gradient")}
        return real(dfg, dur_ns + 3_000_000 * (dfg.name == max(names, default=-1)), residual_ns)

    monkeypatch.setattr(timeline.longest_path, "run", slower)
    assert advised(exchange("half", 0.5, 10)).value > before + 500


def test_a_run_without_a_probe_is_rejected_with_a_remedy():
    with pytest.raises(EsprofError, match="esprof probe") as raised:
        recommend(run_with((1, 1), (1, 1)), "compression", Wanted(max_vnmse=CAREFUL))
    assert "--probe" in raised.value.remedy


def test_drawn_advice():
    drawn = draw_compression(advised(exchange("half", 0.5, 3, sent=MIB // 2), exchange("lossy", 0.1, 1, vnmse=0.9)))
    assert drawn.startswith("A step would take ")
    assert "all choices were replayed; none is shorter" in drawn
    assert "lossy: loses 0.9 of the square" in drawn
    assert "No change recommended" in draw_compression(advised(exchange("slow", 30, 50)))


def test_the_gap_is_exact_only_if_all_choices_of_every_bucket_size_were_tried():
    """An exchange of 1 MiB takes as long as one of 7 MiB, so the recorded bucket stays. It has four choices, all tried, but
    seven buckets of 1 MiB have 4^7."""
    sweeps = [one for codec, ms in (("half", 65), ("third", 66), ("fourth", 67)) for one in exchange(codec, 0.5, ms)]
    of_any_size = [replace(one, points=(*one.points, replace(one.points[0], size=7 * MIB))) for one in sweeps]
    advice = advised(of_any_size, buckets=(7,))
    assert advice.bucket_mb is None
    assert (advice.gap_kind, advice.gap_pct > 0) == ("lower_bound", True)


def test_no_choice_is_below_the_lower_bound():
    """The bound holds although a codec with less CPU time speeds up the concurrent work."""
    concurrent = slowing(PER_BYTE, PER_BYTE / 4)
    advice = advised(exchange("half", 0.5, 25, coding_ms=2, cpu_ms=1), exchange("slow", 30, 50, cpu_ms=9), concurrent)
    nothing_sent, *steps = (advice.baselines.pop("no exchange"), advice.value, *advice.baselines.values())
    assert nothing_sent <= advice.baselines["zero cost"] == min(steps)
