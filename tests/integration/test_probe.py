"""What is measured within real jobs: that it is whole, that it is right where that can be known, and that the job does not
notice."""

import signal
import time

import pytest

from esprof.recorder.shared import tcp
from esprof.run.curve import BeyondCurveError
from tests.cases.record import ESPROF, Running, job, record, run, torchrun

pytestmark = pytest.mark.integration

STEPS = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of the job's data: 2 MiB."""
    file = tmp_path_factory.mktemp("data") / "points.bin"
    file.write_bytes(bytes(range(256)) * 8192)
    return file


@pytest.fixture(scope="module")
def probed(tmp_path_factory, data):
    """Two ranks with a DataLoader worker each, recorded, measured between two steps, and trained on."""
    out = tmp_path_factory.mktemp("probed") / "run"
    command = torchrun("train.py", "--steps", STEPS, "--workers", 1, "--read", data)
    return record(out, command, skip=3, warmup=1, steps=3, stack_steps=0, probe=12)


def test_a_probed_job_trains_on_unchanged(probed, data):
    plain = run(torchrun("train.py", "--steps", STEPS, "--workers", 1, "--read", data))
    assert (probed.code, probed.stdout) == (plain.code, plain.stdout)
    assert probed.warnings == []


def test_a_quiet_probe_says_nothing(probed):
    assert probed.talk == ""


def test_all_benchmarks_of_a_cpu_job_are_measured(probed):
    probes = probed.run.probes
    assert probes.whole
    assert probes.took_s > 0
    kinds = {(one.kind, one.name) for one in probes.sweeps}
    collectives = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}
    codecs = {("encode", spec) for spec in ("fp16", "bf16", "topk:0.01")}
    assert kinds >= {("collective", name) for name in collectives} | codecs
    assert kinds >= {("matmul", "float32"), ("copy", "memory"), ("read", "memory"), ("launch", "operation")}
    assert kinds >= {("load", "warm"), ("save", "fsync"), ("backward", "matmul")}
    besides = {(one.kind, one.beside) for one in probes.sweeps}
    assert besides >= {("backward", "all_reduce"), ("collective", "backward"), ("collective", "itself")}
    assert {one.rank for one in probes.conditions} == {0, 1}


def test_each_congestion_control_that_the_kernel_allows_is_measured(probed):
    probes, loaded = probed.run.probes, tcp.loaded_controls()
    refused = {row.what.rpartition(" ")[2] for row in probes.left_out if row.what.startswith("TCP congestion control ")}
    found = {one.name for one in probes.sweeps if one.kind == "congestion"}
    assert {name for name in found if name.startswith("all_reduce:")} == {
        f"all_reduce:{control}" for control in loaded if control not in refused and len(loaded) - len(refused) > 1
    }
    assert {one.congestion for one in probes.conditions} == {tcp.default_control()}


def test_curves_answer_only_in_their_range(probed):
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        sweep = probed.run.probes.find("collective", name, ranks=(0, 1))
        curve = sweep.curve()
        assert len(sweep.points) > 1  # How many depends on how fast the machine is.
        assert all(curve.at(float(size)) > 0 for size in (*curve.sizes, *(curve.sizes[:-1] + curve.sizes[1:]) // 2))
        with pytest.raises(BeyondCurveError):
            curve.at(4 * int(curve.sizes[-1]))


def test_the_sizes_of_the_collectives_of_the_job_are_measured(probed):
    gradients = 4 * (64 * 32 + 32 + 32 * 8 + 8)
    assert gradients in [point.size for point in probed.run.probes.find("collective", "all_reduce").points]


def test_benchmark_time_is_part_of_no_step(probed):
    steps = probed.run.steps(0)
    assert steps.ints("step").tolist() == list(range(1, STEPS))
    began, took = steps.ints("start_ns"), steps.ints("dur_ns")
    pauses = began[1:] - (began + took)[:-1]
    # Between two steps lies all that was measured, and else nothing.
    assert (pauses > 0.9 * 1e9 * probed.run.probes.took_s).sum() == 1


def test_a_single_process_is_measured_without_links(tmp_path, data):
    ended = record(tmp_path / "run", job("train.py", "--steps", 20), skip=3, steps=3, stack_steps=0, probe=4)
    probes = ended.run.probes
    assert (ended.code, ended.warnings) == (0, [])
    assert probes.whole
    assert not [one for one in probes.sweeps if one.kind == "collective"]
    assert probes.find("encode", "fp16")
    assert any(one.what == "storage of the data" for one in probes.left_out)


def test_a_probe_ends_the_job_and_shows_its_own_step_with_other_options(tmp_path, data):
    out = tmp_path / "run"
    command = torchrun("train.py", "--steps", 1000, "--batch", 8, "--read", data)
    probing = [*ESPROF, "probe", "-o", str(out), "--budget", "4s", "--vary=--batch=16"]
    ended = run([*probing, "--", *command], out)
    assert ended.code == 0
    assert ended.stdout.count("loss") < 2 * 30
    probes = ended.run.probes
    assert probes.whole
    assert {(step.rank, step.setting) for step in probes.steps} == {
        (0, ""),
        (1, ""),
        (0, "--batch 16"),
        (1, "--batch 16"),
    }
    assert all({"data", "forward", "backward", "optimizer"} <= step.parts_ns.keys() for step in probes.steps)
    shown = run([*ESPROF, "probe", "--show", str(out)])
    assert "all_reduce" in shown.stdout
    again = run([*probing, "--", *command])
    assert again.code == 2
    assert "was probed already" in again.stderr


def test_an_interrupted_probe_continues(tmp_path):
    out = tmp_path / "run"
    command = [*ESPROF, "probe", "-o", str(out), "--budget", "8s", "--", *job("train.py", "--steps", 1000)]
    running = Running(command, out)
    while "probing threads" not in running.talk():
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    broken = running.end()
    first = broken.run.probes
    assert not first.whole
    assert "matrix products" in first.stages
    assert "run the same command to continue it" in broken.stderr
    ended = run(command, out)
    whole = ended.run.probes
    assert ended.code == 0
    assert whole.whole
    assert whole.find("matmul", "float32") == first.find("matmul", "float32")
    assert "probing matrix products" not in ended.stderr


def test_a_recording_gets_the_curves_and_is_otherwise_unchanged(tmp_path):
    out = tmp_path / "run"
    command = job("train.py", "--steps", 1000)
    recorded = record(out, job("train.py", "--steps", 12), skip=2, warmup=1, steps=2, stack_steps=0)
    before = (out / "run.json").read_bytes()
    assert recorded.run.probes is None
    assert run([*ESPROF, "probe", "-o", str(out), "--budget", "2s", "--", *command]).code == 0
    assert (out / "run.json").read_bytes() == before
    assert recorded.run.probes.whole


def test_a_job_that_ends_before_the_probe_is_an_error(tmp_path):
    ended = run([*ESPROF, "probe", "-o", str(tmp_path / "run"), "--", *job("train.py", "--steps", 5)])
    assert ended.code == 1
    assert "before step 19" in ended.stderr
    assert not list(tmp_path.iterdir())
