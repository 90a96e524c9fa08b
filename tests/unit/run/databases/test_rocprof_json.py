"""JSON of rocprofv3 and of the first rocprof."""

import pytest

from esprof import load
from esprof.core.errors import InputError
from tests.cases.databases import write_rocpd, write_rocprof_chrome, write_rocprof_json


def test_kernels_copies_and_calls_are_read(tmp_path):
    run = load(write_rocprof_json(tmp_path / "job_results.json"))
    assert (run.ranks, run.meta.source) == ([0], "rocprof")
    assert (run.meta.ranks[0].host, run.meta.ranks[0].device) == ("mi300", "AMD Instinct MI300X")
    events = {row["kind"]: row for row in run.events(0).arrow.to_pylist()}
    call, kernel, copy, marked = events["runtime"], events["kernel"], events["memcpy"], events["op"]
    assert (call["name"], call["tid"], call["start_ns"]) == ("hipLaunchKernel", 4712, 1_000)
    assert (kernel["name"], kernel["stream"], kernel["dur_ns"]) == ("Cijk_Ailk(float*)", 1, 5_000)
    assert kernel["correlation"] == call["correlation"] == 70
    assert (copy["name"], copy["in_bytes"], copy["dur_ns"]) == ("Memcpy HostToDevice", 4096, 500)
    assert (marked["name"], marked["dur_ns"]) == ("forward", 8_500)


def test_rows_of_the_first_rocprof(tmp_path):
    run = load(write_rocprof_chrome(tmp_path / "results.json"))
    assert (run.ranks, run.meta.source) == ([0], "rocprof")
    rows = run.events(0).arrow.to_pylist()
    assert "hsa_queue_create" not in {row["name"] for row in rows}
    events = {row["kind"]: row for row in rows}
    call, kernel, copy, marked = events["runtime"], events["kernel"], events["memcpy"], events["op"]
    assert (call["name"], call["tid"], call["start_ns"]) == ("hipLaunchKernel", 4712, 1_000)
    assert (kernel["name"], kernel["device"], kernel["stream"], kernel["dur_ns"]) == ("Cijk_Ailk", 3, 1, 5_000)
    assert kernel["correlation"] == call["correlation"] is not None
    assert (copy["dur_ns"], marked["name"]) == (500, "forward")


def test_processes_are_ranks_by_their_devices(tmp_path):
    run = load(write_rocprof_json(tmp_path / "job_results.json", (4800, 4711)))
    assert run.ranks == [0, 1]
    assert set(run.events(0).to_pandas().pid.dropna()) == {0, 4800}
    assert [warning.code for warning in run.warnings if warning.code == "rank-guessed"]


def test_queues_are_streams_where_there_are_none(tmp_path):
    run = load(write_rocprof_json(tmp_path / "job_results.json", streams=False))
    kernel = run.events(0).to_pandas().query("kind == 'kernel'").iloc[0]
    assert kernel.stream == 0


def test_json_and_databases_of_one_job(tmp_path):
    write_rocprof_json(tmp_path / "rank0.json")
    write_rocpd(tmp_path / "rank1.db")
    assert load(tmp_path).ranks == [0, 1]


def test_names_of_kernels_may_be_no_utf8(tmp_path):
    path = write_rocprof_json(tmp_path / "job_results.json")
    path.write_bytes(path.read_bytes().replace(b"Cijk", b"C\xffjk"))
    assert load(path).events(0).to_pandas().query("kind == 'kernel'").iloc[0]["name"] == "C\ufffdjk_Ailk(float*)"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"rocprofiler-sdk-tool": [', "malformed JSON of rocprof"),
        (b'{"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [{"kind": 1}]}}]}', "malformed JSON of rocprof"),
        (b'{ "traceEvents":[{}\n,{"ph":"X","name":7}]}', "malformed JSON of rocprof"),
        (b'{ "traceEvents":[{}\n,{"ph":"X","name":"a","pid":"2"}]}', "no process that used a GPU"),
        (b'{"rocprofiler-sdk-tool": []}', "no process that used a GPU"),
    ],
)
def test_what_is_wrong_is_named(content, says, tmp_path):
    (tmp_path / "job_results.json").write_bytes(content)
    with pytest.raises(InputError, match=says) as error:
        load(tmp_path / "job_results.json")
    assert error.value.remedy
