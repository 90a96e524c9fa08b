"""Traces of torch_npu on Ascend devices."""

import json

import pytest

from esprof import load
from esprof.core.errors import InputError
from esprof.replay import answer
from tests.cases.ascend import US, trace_view


@pytest.fixture
def read(tmp_path):
    """Write one trace per rank as torch_npu does, and read them."""

    def read(*traces):
        paths = []
        for rank, rows in enumerate(traces):
            folder = tmp_path / f"dp{rank}_rank{rank}_2026_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
            folder.mkdir(parents=True)
            paths.append(folder / "trace_view.json")
            paths[-1].write_text(json.dumps(rows))
        return load(paths)

    return read


def events(run, rank=0):
    return run.events(rank).to_pandas()


def test_the_work_of_the_device(read):
    found = events(read(trace_view()))
    work = found[found.stream.notna()]
    assert set(work.name) == {"aclnnMatmul_MatMulV2", *(f"hcom_allReduce__428_{step}_1" for step in range(5))}
    kernel = work[work.name == "aclnnMatmul_MatMulV2"].iloc[0]
    assert (kernel.start_ns, kernel.dur_ns, kernel.stream, kernel.step) == (1000 * (US + 60), 300_000, 5, 0)
    reduced = work[work.kind == "collective"].iloc[0]
    assert (reduced.collective, reduced.dur_ns) == ("all_reduce", 300_000)


def test_the_host(read):
    found = events(read(trace_view()))
    assert set(found[found.kind == "runtime"].name) == {"Node@launch", "AscendCL@aclrtSynchronizeStream"}
    assert found[found.name == "aten::mm"].iloc[0].shapes == "[[4, 8], [8, 2]]"
    assert found[found.kind == "step"].step.tolist() == [0, 1, 2, 3, 4]


def test_ranks_come_from_folders(read):
    run = read(trace_view(0), trace_view(1))
    assert run.ranks == [0, 1]
    assert {warning.code for warning in run.warnings} == {"plain-device"}
    found = answer(run)
    assert found.step_us == pytest.approx(1000)
    assert found.coverage.collectives_matched == found.coverage.collectives == 10
    assert found.coverage.kernels_without_launch == 0


def test_flows_link_kernels_to_operations(read):
    found = events(read(trace_view(linked="flow")))
    kernel = found[found.name == "aclnnMatmul_MatMulV2"].iloc[0]
    launch = found[(found.name == "launch (not recorded)") & (found.correlation == kernel.correlation)].iloc[0]
    assert launch.start_ns == 1000 * (US + 60)


def test_a_document_with_trace_events(read):
    whole, bare = events(read({"traceEvents": trace_view()})), trace_view()
    assert len(whole) == sum(row["ph"] == "X" for row in bare) - 5 * 5


def test_rows_of_unexpected_form_are_left_out(read):
    odd = [
        7,
        {"ph": "X", "name": ["a"], "pid": 41},
        {"ph": "X", "name": "b", "pid": 41, "tid": 41, "ts": None, "dur": {}},
    ]
    found = events(read([*trace_view(), *odd]))
    assert (found.name == "aten::mm").sum() == 5
    assert not (found.name == "b").any()


def test_an_unfinished_file_is_refused(tmp_path):
    (tmp_path / "trace_view.json").write_text(json.dumps(trace_view())[:-1])
    with pytest.raises(InputError, match="not valid JSON"):
        load(tmp_path / "trace_view.json")


def test_a_large_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "trace_view.json").write_text(json.dumps(trace_view()))
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "100000")
    with pytest.raises(InputError, match="larger than the memory limit"):
        load(tmp_path / "trace_view.json")
