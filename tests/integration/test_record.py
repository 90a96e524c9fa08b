"""`esprof record` of real jobs: the recording, and an unchanged job."""

import os
import re

import numpy as np
import pytest

import esprof
from esprof import load
from esprof.analyzers.findings.kernels.padding import padding
from esprof.analyzers.ops.over_ranks import Asked, ops_run
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.samples.flame import flame
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.views.amounts import input_elements
from esprof.replay import Replayed
from esprof.replay.whatif.gradients.backward import gradient_elements
from esprof.run.kineto.reader import read_trace
from esprof.run.raw import names
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Window
from tests.cases.marks import flight_recorder_of_gloo, soak
from tests.cases.record import JOBS, job, record, run, torchrun

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def plain():
    """Two ranks with a DataLoader worker each, not recorded."""
    return run(torchrun("train.py", "--steps", 24, "--workers", 1))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The same, recorded."""
    out = tmp_path_factory.mktemp("two") / "run"
    command = torchrun("train.py", "--steps", 24, "--workers", 1)
    return record(out, command, skip=4, warmup=2, steps=6, stack_steps=2)


@pytest.mark.compat("recording")
def test_the_jobs_output_and_losses_stay_the_same_to_the_bit(plain, recorded):
    assert recorded.code == plain.code == 0
    assert recorded.stdout == plain.stdout
    assert plain.stdout.count("loss") == 24
    assert recorded.talk == plain.stderr


@pytest.mark.compat("recording")
def test_every_rank_is_recorded_in_the_windows_asked_for(recorded):
    assert recorded.run.ranks == [0, 1]
    assert recorded.warnings == []
    for rank in (0, 1):
        assert recorded.run.rank(rank).windows == (Window(first=6, last=11), Window(first=13, last=14, stacks=True))
        events = recorded.run.events(rank)
        steps = events.where(events.is_kind("step"))
        assert steps.ints("step").tolist() == [6, 7, 8, 9, 10, 11]
    assert not (recorded.out / "raw").exists()


@pytest.mark.compat("recording")
def test_every_step_of_the_job_has_its_row(recorded):
    steps = recorded.run.steps(0)
    assert steps.ints("step").tolist() == list(range(1, 24))
    phases = ["plain"] * 3 + ["warmup"] * 2 + ["timed"] * 6 + ["export"] + ["stack"] * 2 + ["export"] + ["plain"] * 8
    assert steps.texts("phase") == phases
    starts, durations = steps.ints("start_ns"), steps.ints("dur_ns")
    assert np.array_equal(starts[1:], (starts + durations)[:-1])
    assert steps.ints("samples").tolist() == [8] * 23
    assert (steps.ints("cpu_ns") > 0).all()
    assert (steps.ints("ready_ns", missing=0) >= 0).all()


def test_step_rows_and_profiler_agree_on_when_a_step_was(recorded):
    events, rows = recorded.run.events(1), recorded.run.steps(1)
    seen = events.where(events.is_kind("step"))
    noted = rows.where(np.isin(rows.ints("step"), seen.ints("step")))
    starts, ends = noted.ints("start_ns"), noted.ints("start_ns") + noted.ints("dur_ns")
    assert len(seen) == len(noted) == 6
    assert (seen.ints("start_ns") < ends).all()
    assert (seen.ints("start_ns") + seen.ints("dur_ns") > starts).all()
    # Both note the same borders, each a moment after the other.
    assert (np.abs(seen.ints("start_ns") - starts) < noted.ints("dur_ns")).all()


@pytest.mark.compat("collectives")
@flight_recorder_of_gloo
def test_collectives_say_what_they_moved_and_between_whom(recorded):
    events = recorded.run.events(0)
    calls = events.where(events.is_kind("collective"))
    assert len(calls) >= 6
    assert set(calls.texts("collective")) == {"all_reduce"}
    assert set(calls.texts("group")) == {"0-1"}
    assert np.diff(calls.ints("coll_seq")).tolist() == [1] * (len(calls) - 1)
    gradients = 4 * (64 * 32 + 32 + 32 * 8 + 8)
    assert gradients in calls.ints("in_bytes").tolist()
    assert [group.ranks for group in recorded.run.meta.groups] == [(0, 1)]


def test_operations_have_shapes_with_the_option(recorded, tmp_path):
    assert set(recorded.run.events(0).texts("shapes")) <= {None, "[]"}
    ended = record(tmp_path / "run", job("train.py", "--steps", 8), shapes=True, skip=1, steps=3, stack_steps=0)
    events = ended.run.events(0)
    linear = [
        shape for name, shape in zip(events.texts("name"), events.texts("shapes"), strict=True) if name == "aten::addmm"
    ]
    assert linear
    assert all(shape and "[8" in shape for shape in linear)


def test_steps_with_stacks_tell_the_shapes_of_timed_operations(tmp_path):
    out = tmp_path / "run"
    settings = {"skip": 1, "warmup": 1, "steps": 3, "stack_steps": 2, "shapes": True}
    ended = run(job("train.py", "--steps", 12), **esprof.environment(out, **settings))
    assert ended.code == 0, ended.stderr
    windows = [out / "raw" / names.window(0, phase, first) for phase, first in (("timed", 2), ("stack", 6))]
    timed, stacks = (read_trace(window).events for window in windows)
    assert set(timed.texts("shapes")) <= {None, "[]"}
    assert "[[8, 64], [32, 64], [32]]" in stacks.texts("shapes")
    recorded = load(out)
    events = recorded.events(0)
    assert set(events.ints("step").tolist()) - {-1} == {2, 3, 4}
    assert [warning for warning in recorded.warnings if warning.code == "shapes-unknown"] == []
    by_shape = ops_run(recorded, Asked(top=1_000, by_shape=True))
    linear = {one.shapes for one in by_shape.ops if one.name == "aten::linear"}
    assert linear == {"[[8, 64], [32, 64], [32]]", "[[8, 32], [8, 32], [8]]"}
    gradients = sorted([32 * 64, 32, 8 * 32, 8])
    found = gradient_elements(recorded, 0)
    assert {step: sorted(sizes) for step, sizes in found.items()} == dict.fromkeys((2, 3, 4), gradients)
    assert len(set(input_elements(events, (2, 3, 4)))) == 1


@pytest.mark.compat("recording")
def test_operations_are_counted_and_timed_on_every_rank(recorded):
    found = ops_run(recorded.run, Asked(top=1_000))
    assert (found.ranks, found.steps, found.has_gpu) == ((0, 1), (7, 8, 9, 10, 11), False)
    by_name = {one.name: one for one in found.ops}
    # Two linear layers; each gives two gradients, but for the first one's to the data.
    assert (by_name["aten::addmm"].calls, by_name["aten::mm"].calls) == (2, 3)
    assert all(rank.calls == 2 for rank in by_name["aten::addmm"].by_rank)
    step = by_name["Optimizer.step#AdamW.step"]
    assert 0 < step.own_cpu_us < step.total_cpu_us < found.step_us
    assert by_name["gloo:all_reduce"].kind == "collective"
    modules = {one.name: one for one in found.ops if one.kind == "module"}
    assert set(modules) == {"DistributedDataParallel", "Sequential", "Sequential.0", "Sequential.1", "Sequential.2"}
    assert {one.calls for one in modules.values()} == {1}
    assert 0 < modules["Sequential.2"].total_cpu_us < modules["Sequential"].total_cpu_us < found.step_us
    assert 0 < modules["Sequential.2"].backward_cpu_us < modules["Sequential"].backward_cpu_us < found.step_us
    assert found.cpu_us == pytest.approx(sum(one.own_cpu_us for one in found.ops), rel=1e-6)


def test_the_run_says_where_it_was_made(recorded):
    meta = recorded.run.meta
    assert meta.exit_code == 0
    assert "torch.distributed.run" in meta.command
    assert {"python", "torch", "esprof"} <= set(meta.versions)
    for rank in meta.ranks:
        assert rank.host == os.uname().nodename
        assert rank.device
        assert rank.peak_memory_of == "rss"
        assert rank.peak_memory > 50 << 20
        assert rank.overhead is None  # There are too few steps beside the window.
        assert set(rank.cpus) == os.sched_getaffinity(0)


def test_tokens_and_padding_of_batches_are_recorded_and_reported(tmp_path):
    padded = record(tmp_path / "run", job("padded.py"), skip=2, warmup=1, steps=4, stack_steps=0)
    assert padded.code == 0
    steps = padded.run.steps(0)
    assert set(steps.ints("tokens").tolist()) == {16 * 32}
    assert set(steps.ints("padding").tolist()) == {16 * 16}
    replayed = Replayed.of(padded.run, max_error_pct=1000)
    case = Case(replayed, RecordedJob(replayed.run))
    assert [cause.evidence["padding"].of(0) for cause in padding(case)] == [0.5]


def test_every_batch_taken_was_made_before_by_the_worker_named(recorded):
    stages = recorded.run.stages(0).to_pandas()
    taken, made = (stages[stages.kind == kind].set_index("batch") for kind in ("next", "fetch"))
    assert list(taken.index) == list(range(24)) or list(taken.index) == list(range(25))
    assert (made.loc[taken.index].end_ns.to_numpy() <= taken.end_ns.to_numpy()).all()
    assert (made.pid != recorded.run.rank(0).pid).all()
    assert (taken.pid == recorded.run.rank(0).pid).all()
    assert set(taken.worker) == set(made.worker) == {0}
    assert set(made.samples) == {8}
    assert (made.cpu_ns > 0).all()
    parts = stages[stages.kind == "part"]
    assert set(parts.name) == {"collate"}
    assert len(parts) == len(made)
    # A worker has one thread of its own and one that sends what it made: they cannot run for more than twice as long.
    assert (made.cpu_ns <= 2 * (made.end_ns - made.start_ns)).all()


@pytest.mark.parametrize(
    ("method", "persistent"),
    [soak("fork", []), ("spawn", ["--persistent"]), soak("forkserver", [])],
    ids=lambda value: str(value),
)
def test_loader_workers_are_recorded_however_they_start(tmp_path, method, persistent):
    command = job("train.py", "--steps", 6, "--epochs", 2, "--workers", 2, "--start-method", method, *persistent)
    ended = record(tmp_path / "run", command, skip=1, warmup=1, steps=4, stack_steps=0)
    assert ended.code == 0
    stages = ended.run.stages(0).to_pandas()
    taken, made = (stages[stages.kind == kind].set_index(["loader", "batch"]) for kind in ("next", "fetch"))
    assert set(taken.index.get_level_values("loader")) == {0, 1}
    assert list(made.loc[taken.index].worker) == list(taken.worker)
    assert (made.loc[taken.index].end_ns.to_numpy() <= taken.end_ns.to_numpy()).all()
    assert made.pid.nunique() == (2 if persistent else 4)


def test_a_loader_without_workers_has_no_worker_in_its_stages(tmp_path):
    command = job("train.py", "--steps", 8, "--save-every", 2)
    ended = record(tmp_path / "run", command, skip=1, warmup=1, steps=3, stack_steps=0)
    stages = ended.run.stages(0).to_pandas()
    assert set(stages.kind) == {"next", "part", "stage"}
    assert stages.worker.isna().all()
    assert _stages_of_the_job(stages) == ["torch.save"] * 4
    taken = stages[stages.kind == "next"]
    assert set(taken.workers) == {0}
    assert list(taken.batch)[:8] == list(range(8))
    assert ended.run.steps(0).ints("loader_wait_ns").min() > 0


def _stages_of_the_job(stages):
    """The names of what the job does: a garbage collection that takes long, as on a slow machine, is a stage, too."""
    return [name for name in stages[stages.kind == "stage"].name if name != GARBAGE_COLLECTION]


def test_saves_by_functions_that_were_imported_by_name_are_stages(tmp_path):
    ended = record(tmp_path / "run", job("saves.py", tmp_path), flight=100)
    assert ended.code == 0
    stages = ended.run.stages(0).to_pandas()
    checkpoint = "torch.distributed.checkpoint"
    assert _stages_of_the_job(stages) == ["torch.save", f"{checkpoint}.save", f"{checkpoint}.async_save"]


def test_python_without_a_launcher_is_rank_0_of_1(tmp_path):
    ended = record(tmp_path / "run", job("train.py", "--steps", 20, "--pause", 0.01))
    assert (ended.run.ranks, ended.run.world_size) == ([0], 1)
    stacks = ended.run.stacks(0).to_pandas()
    asleep = stacks.groupby("frame", observed=True).dur_ns.sum().idxmax()
    (line,) = re.fullmatch(r".*train\.py\((\d+)\): main", asleep).groups()
    assert "time.sleep(" in (JOBS / "train.py").read_text().splitlines()[int(line) - 1]
    outermost = ended.run.samples(0).texts("stack")[-1].split("\n")[0]
    assert re.fullmatch(r".*train\.py\(\d+\): <module>", outermost)
    found = flame(JobSamples(JobSteps(ended.run)))
    (tree,) = found.trees
    assert (found.phase, found.ranks, tree.samples > 0, 0 < tree.cpu_us <= tree.us) == ("stack", (0,), True, True)
    by_function = {node.function: node for node in tree.nodes}
    assert by_function["<module>"].parent == -1
    assert tree.nodes[by_function["main"].parent] == by_function["<module>"]
    assert by_function["main"].origin == "job"


@pytest.mark.parametrize("method", ["spawn", soak("fork")])
def test_ranks_that_a_script_starts_itself_are_recorded(tmp_path, method):
    ended = record(tmp_path / "run", job("spawned_ranks.py", tmp_path / "store", method), stack_steps=0)
    assert ended.code == 0
    assert ended.run.ranks == [0, 1]
    # They end by `os._exit`, of which nobody hears.
    assert {(warning.code, warning.ranks) for warning in ended.warnings} == {
        ("rank-killed", (0,)),
        ("rank-killed", (1,)),
    }


@pytest.mark.parametrize("operation", ["compute", "sleep"])
def test_a_sleeping_operation_is_not_counted_as_compute(tmp_path, operation):
    """However slow the machine is: what an operation had to wait for a CPU counts as neither."""
    ended = record(tmp_path / "run", job("idle_operation.py", operation), skip=2, warmup=1, steps=8, stack_steps=0)
    replayed = Replayed.of(ended.run)
    (found,) = replayed.not_run
    assert found.operations_ns.min() >= 30_000_000
    assert (np.median(found.idle_ns) > 15_000_000) == (operation == "sleep")
    assert "HookBackward" in found.longest


def test_the_first_of_two_optimizers_defines_the_steps(tmp_path):
    ended = record(tmp_path / "run", job("odd_steps.py", "alternating"))
    assert ended.run.steps(0).ints("step").tolist() == list(range(1, 20))


def test_a_compiled_step_still_compiles_as_often_and_is_recorded(tmp_path):
    command = job("odd_steps.py", "compiled")
    ended = record(tmp_path / "run", command)
    assert ended.stdout == run(command).stdout
    assert len(ended.run.steps(0)) == 19
