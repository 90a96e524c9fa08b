"""ESP304: collectives with less bandwidth than others of their kind."""

import msgspec
import pytest

from esprof.analyzers import diagnose
from esprof.run.run import Run
from tests.cases import nccl_buckets
from tests.cases.findings import ungrouped
from tests.cases.graph import run_of


def slow(slower, *, sizes=(2,) * 12, compute_ms=1.0):
    rows = nccl_buckets.ddp_step(sizes, [1] * len(sizes), compute_ms=compute_ms, communication_ms=5.0, slower=slower)
    run = run_of({0: rows, 1: rows})
    return [found for found in diagnose(run).findings if found.id == "ESP304"]


def test_collectives_that_take_three_times_as_long_as_others_are_reported_with_a_price():
    (found,) = slow(range(0, 12, 2))
    assert "3.0 times as long" in found.title
    assert "collective[" in found.command
    # Six of twelve collectives of 10.1 ms take twice that too long.
    assert found.saving_us == pytest.approx(6 * 2 * 10_100, rel=0.02)
    assert found.evidence["bandwidth_of_fastest"].value == pytest.approx(
        3 * found.evidence["bandwidth_of_slow"].value, rel=0.02
    )
    assert not found.evidence["overlap_compute"].value
    assert "share_of_link" not in found.evidence  # The device is unknown.


def on_a100(rows: list) -> Run:
    run = run_of({0: rows, 1: rows})
    metas = tuple(msgspec.structs.replace(meta, device="NVIDIA A100-SXM4-80GB") for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


@pytest.mark.parametrize(("ms_per_mib", "share"), [(0.0045, 0.7), (0.1, 0.035)])
def test_exposed_collectives_that_reach_little_of_their_link_are_suspected(ms_per_mib, share):
    rows = nccl_buckets.ddp_step((200,) * 4, [1] * 4, compute_ms=0.1, communication_ms=ms_per_mib)
    (exposed,) = [one for one in ungrouped(on_a100(rows)) if one.id == "ESP301"]
    assert exposed.evidence["share_of_link"].of("largest collectives") == pytest.approx(share, rel=0.02)
    assert ("nvidia-smi topo" in exposed.advice) == (share < 0.2)


def test_known_links_are_compared_with_their_peak():
    rows = nccl_buckets.ddp_step((2,) * 12, [1] * 12, compute_ms=1.0, communication_ms=5.0, slower=range(0, 12, 2))
    (found,) = [one for one in diagnose(on_a100(rows)).findings if one.id == "ESP304"]
    shares = found.evidence["share_of_link"]
    assert shares.of("fastest") == pytest.approx(found.evidence["bandwidth_of_fastest"].value / 300e9, abs=5e-5)
    assert shares.of("slow") == pytest.approx(shares.of("fastest") / 3, abs=5e-5)


def test_slow_collectives_that_overlap_compute_are_reported_as_such():
    (found,) = slow(range(4), compute_ms=10.0)
    assert found.evidence["overlap_compute"].value
    assert "while the GPU computes" in found.advice


@pytest.mark.parametrize(
    "how",
    [
        {"slower": ()},
        {"slower": range(12)},  # all equal: the bandwidth of the link is unknown
        {"slower": (3,)},  # seldom
        {"slower": range(0, 8, 2), "sizes": (2,) * 8},  # too few
    ],
)
def test_collectives_that_are_as_fast_as_others_or_seldom_slow_are_not_reported(how):
    assert slow(**how) == []


def test_small_collectives_that_latency_dominates_are_not_slow():
    assert slow((), sizes=(0.01, 2) * 8) == []
