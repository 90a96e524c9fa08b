"""Bandwidths of collectives by size, against the formulas of nccl-tests and the peak of the link."""

import msgspec
import pytest

from esprof.analyzers.ops.over_ranks import ops_run
from esprof.analyzers.views.links import LinkPeak, link_peak
from esprof.replay.whatif.communication.links import bus_factor
from esprof.run.run import Run
from tests.cases import probed
from tests.cases.graph import call, nccl, op, run_of, step

A100 = "NVIDIA A100-SXM4-80GB"
MIB = 1 << 20


def rank_rows(late: float, **described) -> list:
    """Two all-reduces, of 4 MiB in 50 µs and of 1 MiB in 20 µs after the last of both ranks has arrived."""
    rows = [step(1, 0, 1_000), op("aten::mm", 0, 90)]
    for at, took, mib, number in ((100.0, 50.0, 4, 1), (400.0, 20.0, 1, 2)):
        sizes = {"collective": "allreduce", "in_elements": mib * MIB // 4, "dtype": "Float"} | described
        rows += nccl(at, at + 10 + late, at + 10 + 200 + took, number, sequence_in_group=number, **sizes)
    return [*rows, call("cudaDeviceSynchronize", 700, 5, 3), op("aten::item", 706, 290)]


def job(*, ranks=(0, 1), device: str | None = A100, hosts=("a", "a"), **described) -> Run:
    group = {"group_ranks": [0, 1]}
    run = run_of(
        {rank: rank_rows(200.0 * rank, **group, **described) for rank in ranks}, world=2, hosts=dict(enumerate(hosts))
    )
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


def test_bandwidths_are_those_of_nccl_tests_after_the_last_rank_arrived():
    large, small = ops_run(job()).collectives
    assert (large.collective, large.ranks, large.largest, large.calls) == ("all_reduce", (0, 1), 4 * MIB, 1)
    assert large.is_matched
    assert large.us == pytest.approx(50)
    assert large.algorithm_bytes_per_s == pytest.approx(4 * MIB / 50e-6, rel=1e-6)
    assert large.bus_bytes_per_s == pytest.approx(large.algorithm_bytes_per_s)  # 2 (n - 1) / n of two ranks is 1
    assert small.algorithm_bytes_per_s == pytest.approx(MIB / 20e-6, rel=1e-6)
    assert large.peak == LinkPeak(bytes_per_s=300e9, source="data sheet")
    assert large.peak_pct == pytest.approx(100 * large.bus_bytes_per_s / 300e9)


def test_without_the_other_rank_bandwidths_are_lower_bounds():
    (large, small) = ops_run(job(ranks=(0,))).collectives
    assert not large.is_matched
    assert large.us == pytest.approx(250)
    assert large.peak is None
    assert small.us == pytest.approx(220)


def test_collectives_of_unknown_size_are_only_counted():
    answer = ops_run(job(in_elements=None))
    assert answer.collectives == ()
    assert answer.collectives_unknown == 1


def test_an_all_gather_needs_the_size_of_its_output():
    assert ops_run(job(collective="_allgather_base")).collectives == ()


@pytest.mark.parametrize(
    ("word", "factor"),
    [("all_reduce", 1.75), ("reduce_scatter", 0.875), ("all_gather", 0.875), ("broadcast", 1), ("gather", None)],
)
def test_bus_factors(word, factor):
    assert bus_factor(word, 8) == factor


@pytest.mark.parametrize(
    "how",
    [{"hosts": ("a", "b")}, {"device": "NVIDIA L40S"}, {"device": None}, {"ranks": (0,)}],
    ids=["two hosts", "PCIe", "unknown device", "a rank is missing"],
)
def test_the_peak_is_unknown_where_the_link_is(how):
    assert link_peak(job(**how), (0, 1)) is None


def test_a_probe_of_the_ranks_precedes_data_sheets():
    run = job()
    run.probes = probed.probes(probed.link(0, 1 / 128))
    assert link_peak(run, (0, 1)) == LinkPeak(bytes_per_s=pytest.approx(128e9), source="probe")
    run.probes = replace_ranks(run.probes)
    assert link_peak(run, (0, 1)).source == "data sheet"


def replace_ranks(probes):
    """The same sweeps, of other ranks."""
    return msgspec.structs.replace(
        probes, sweeps=tuple(msgspec.structs.replace(one, ranks=(2, 3)) for one in probes.sweeps)
    )
