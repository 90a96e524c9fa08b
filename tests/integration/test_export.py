"""`esprof export` of traces from real GPUs: other readers find in it what `esprof replay` answers."""

import csv
import gzip
import io
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from esprof.verbs import command_line
from tests.cases import perfetto
from tests.cases.run_directory import names_in

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
JOB = TRACES / "torchrec-4xv100" / "long_a2a_1"
TRACE_PROCESSOR = shutil.which("trace_processor") or shutil.which("trace_processor_shell")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project"),
]
BY_CLASS = """
select category, sum(dur) from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
where thread.name = 'critical path replayed' group by category
"""


def run(*words, timeout=300):
    done = subprocess.run(command_line(*map(str, words)), capture_output=True, text=True, timeout=timeout, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def answer():
    return json.loads(run("replay", JOB, "--json"))


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("export") / "job.pftrace"
    run("export", JOB, "--format", "perfetto", "-o", file, "--what-if", "network=2x")
    return file


def classes(answer):
    return {name: us for name, us in answer["critical_path"]["classes"].items() if us}


def test_the_critical_path_in_the_trace_is_that_of_replay(answer, trace_file):
    trace = perfetto.read(trace_file.read_bytes())
    found = Counter()
    for one in trace.on("job", "critical path replayed"):
        found[one.category] += one.end - one.start
    assert {name: ns / 1000 for name, ns in found.items()} == pytest.approx(classes(answer))
    ranks = {process.split(" (")[0] for process in trace.processes}
    assert ranks == {"job", *(f"rank {rank}{what}" for rank in range(4) for what in ("", " replayed", " network=2x"))}
    assert all(one.end >= one.start for one in trace.slices)
    assert sum(bool(one.flows) for one in trace.slices) > 1000


def test_the_trace_is_of_perfettos_schema(trace_file):
    schema = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="Perfetto's Python package is not installed"
    )
    unknown = pytest.importorskip("google.protobuf.unknown_fields")
    trace = schema.Trace.FromString(trace_file.read_bytes())
    for packet in trace.packet:
        event, track, interned = packet.track_event, packet.track_descriptor, packet.interned_data
        messages = [packet, event, track, track.process, track.thread, interned, *interned.event_names]
        for message in [*messages, *event.debug_annotations]:
            assert not len(unknown.UnknownFieldSet(message))
    begin, end = schema.TrackEvent.TYPE_SLICE_BEGIN, schema.TrackEvent.TYPE_SLICE_END
    types = Counter(packet.track_event.type for packet in trace.packet if packet.HasField("track_event"))
    assert types[begin] == types[end] > 10_000


@pytest.mark.skipif(TRACE_PROCESSOR is None, reason="Perfetto's trace_processor is not installed")
def test_sql_finds_the_critical_path(answer, trace_file, tmp_path):
    query = tmp_path / "query.sql"
    query.write_text(BY_CLASS)
    done = subprocess.run(
        [TRACE_PROCESSOR, "-q", str(query), str(trace_file)], capture_output=True, text=True, timeout=300, check=True
    )
    found = {row[0]: int(row[1]) / 1000 for row in list(csv.reader(io.StringIO(done.stdout)))[1:] if row}
    assert found == pytest.approx(classes(answer))


def test_esprof_replays_its_export_alike(answer, tmp_path):
    file = tmp_path / "job.json.gz"
    run("export", JOB, "--format", "chrome", "-o", file)
    again = json.loads(run("replay", file, "--json"))
    assert (again["world_size"], again["coverage"]) == (answer["world_size"], answer["coverage"])
    steps = [(step["step"], step["replayed_us"]) for step in answer["steps"]]
    assert [(step["step"], step["replayed_us"]) for step in again["steps"]] == steps
    assert classes(again) == classes(answer)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_small_run_without_names_has_the_same_first_finding(tmp_path):
    out = tmp_path / "shared"
    words = ("export", JOB, "--format", "run", "--shrink", "--redact", "-o", out, "--json")
    written = json.loads(run(*words, timeout=1500))
    before, after = (json.loads(run("diagnose", source, "--json")) for source in (JOB, out))
    first, found = before["findings"][0], after["findings"][0]
    assert (found["id"], found["ranks"]) == (first["id"], first["ranks"])
    assert found["saving_us"] == pytest.approx(first["saving_us"], rel=0.01)
    assert after["step_us"] == pytest.approx(before["step_us"], rel=0.01)
    print(f"{written['shared']['bytes_before']} bytes, now {written['bytes']}")
    assert written["bytes"] < 10_000 * len(before["breakdown"])
    names = ["_AlltoAllSingle", "fbgemm", "permute_2D_sparse_data", "interaction arch", "KJTListAwaitable", "volta"]
    assert set(names) <= set(names_in_traces(names))
    assert not names_in(out, names)


def names_in_traces(names):
    """Those of `names` that the traces have."""
    text = "".join(gzip.decompress(file.read_bytes()).decode() for file in JOB.iterdir())
    return [name for name in names if name in text]
