"""Advice on the gradients of FSDP2 for a synthetic job: two reduce-scatters of 1 MiB, 20 ms each."""

import pytest

from esprof.analyzers import recommend
from esprof.analyzers.advisors.recommend import Wanted
from esprof.core.errors import EsprofError
from esprof.core.plan import CompressionBody, check
from esprof.reports.terminal.advice.compression import draw_compression
from tests.cases.compression import MIB, narrow_scatter
from tests.cases.probed import link, probes
from tests.cases.shards import shards_run

PER_BYTE = 20e6 / MIB


def advised(*sweeps, max_vnmse=0.01, sizes=(1, 1), **how):
    run = shards_run(sizes, **how)
    run.probes = probes(link(0, PER_BYTE), *sweeps)
    return recommend(run, "compression", Wanted(max_vnmse=max_vnmse))


def test_bf16_is_advised_for_exposed_reduce_scatters():
    advice = advised(*narrow_scatter(1, 8, add_ms=2, sent=MIB // 4))
    assert advice.collective == "reduce_scatter"
    assert advice.plan is not None
    check(advice.plan)
    assert advice.plan.parts.compression.body == CompressionBody(sharded="bf16")
    assert advice.plan.parts.compression.changes_bits
    assert [(one.codec, one.elements, one.sent_bytes) for one in advice.decision] == [
        ("bf16", (MIB // 4,), MIB // 4)
    ] * 2
    assert [one.saves_us for one in advice.decision] == pytest.approx([12e3] * 2, rel=0.05)
    steps = advice.baselines
    assert list(steps) == ["now", "bf16", "zero cost", "no exchange"]
    assert steps["no exchange"] < steps["zero cost"] < steps["bf16"] == advice.value < steps["now"]
    assert advice.exposed_us == pytest.approx(40e3, rel=0.02)
    assert (advice.gap_kind, advice.gap_pct, advice.gain_over_16_bit_pct) == ("exact", 0.0, 0.0)


@pytest.mark.parametrize("took_ms", [19.5, 30])
def test_nothing_is_advised_without_a_significant_gain(took_ms):
    advice = advised(*narrow_scatter(1, took_ms))
    assert advice.plan is None
    assert advice.value <= advice.baselines["now"]
    assert {one.codec for one in advice.decision} == {"bf16" if took_ms < 20 else "none"}


def test_a_codec_with_too_much_loss_is_left_out():
    advice = advised(*narrow_scatter(1, 8), max_vnmse=0.0)
    assert advice.plan is None
    assert "more than 0" in advice.left_out["bf16"]
    assert "bf16" not in advice.baselines


def test_missing_data_is_named_in_the_error():
    with pytest.raises(EsprofError, match="was not measured"):
        advised()
    with pytest.raises(EsprofError, match="already send 16-bit floats"):
        advised(*narrow_scatter(1, 8), dtype="c10::Half")


def test_drawn_advice():
    drawn = draw_compression(advised(*narrow_scatter(1, 8, sent=MIB // 4)))
    assert drawn.startswith("A step would take ")
    assert "Reduce-scatters" in drawn
    assert "40.0 ms of a step is exposed" in drawn
    assert "No change recommended" in draw_compression(advised(*narrow_scatter(1, 30)))
