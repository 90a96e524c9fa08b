"""The memory probe on small real trainings; the CUDA allocator's statistics come from a function made up here."""

import json
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.state import StepState
from esprof.recorder.injected.steps import control_groups, memory
from esprof.recorder.injected.steps.memory import MemoryProbe

MIB = 1 << 20


class Training:
    """A model that is trained on this thread, and the probe that watches it."""

    def __init__(self, prefix, statistics=dict):
        self.state, self.log = StepState(), Log()
        self.state.thread = threading.get_ident()
        self.log.open(str(prefix), limit=MIB)
        self.probe = MemoryProbe(self.state, self.log, statistics)
        self.probe.install()
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self):
        return self.model(torch.ones(2, 4)).square().mean()

    def step(self, backward_passes=1):
        self.optimizer.zero_grad()
        for _ in range(backward_passes):
            self.loss().backward()
        self.optimizer.step()
        self.end_step()

    def end_step(self):
        self.state.step += 1
        self.probe.at_step()

    @property
    def rows(self):
        return self.log.tail("memories")

    @property
    def phases(self):
        return [(step, phase) for step, phase, *_ in self.rows]


@pytest.fixture
def every_step(monkeypatch):
    monkeypatch.setattr(memory, "MIN_BETWEEN_SAMPLES_NS", 0)


@pytest.fixture
def training(tmp_path, monkeypatch, every_step):
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # Taken back after the test.
    return lambda *more: Training(tmp_path / "rank-00000", *more)


def test_each_phase_of_a_step_is_sampled_at_its_end(training):
    job = training()
    for _ in range(3):
        job.step()
    whole = [(step, phase) for step in (1, 2) for phase in ("forward", "backward", "optimizer")]
    assert job.phases == [(0, None), *whole]
    times = [at_ns for _, _, at_ns, *_ in job.rows]
    assert times == sorted(times)
    assert all(row[3:6] == (None, None, None) and row[6] > MIB for row in job.rows)


def test_fast_steps_are_not_sampled(training, monkeypatch):
    monkeypatch.setattr(memory, "MIN_BETWEEN_SAMPLES_NS", 3600 * 10**9)
    job = training()
    for _ in range(5):
        job.step()
    assert job.phases == [(0, None), (1, "forward"), (1, "backward"), (1, "optimizer")]


def test_accumulated_gradients_have_several_passes_in_a_step(training):
    job = training()
    job.end_step()
    job.step(backward_passes=2)
    passes = [(1, "forward"), (1, "backward")] * 2
    assert job.phases == [(0, None), *passes, (1, "optimizer")]


def test_a_step_without_backward_has_no_phases(training):
    job = training()
    for _ in range(3):
        job.end_step()
    assert job.phases == [(0, None), (1, None), (2, None)]


def test_what_checkpointing_runs_backward_inside_a_pass_is_no_pass_of_its_own(training):
    job = training()
    job.end_step()
    x = torch.ones(2, 4, requires_grad=True)
    checkpoint(job.model, x, use_reentrant=True).sum().backward()
    job.end_step()
    assert job.phases == [(0, None), (1, "forward"), (1, "backward"), (1, "optimizer")]


def test_another_threads_backward_is_not_the_jobs(training):
    job = training()
    job.end_step()
    other = threading.Thread(target=lambda: job.loss().backward())
    other.start()
    other.join()
    assert job.phases == [(0, None)]


def test_a_backward_that_fails_ends_its_phase_and_its_error_reaches_the_job(training):
    job = training()
    job.end_step()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    job.step()
    assert job.phases[1:3] == [(1, "forward"), (1, "backward")]


def test_the_cuda_allocators_figures_are_noted_as_they_are(training):
    held = iter([(1, 4, 1), (6, 8, 6), (3, 16, 9), (2, 16, 9)])

    def statistics():
        current, reserved, peak = next(held)
        return {
            "allocated_bytes": {"all": {"current": current * MIB, "peak": peak * MIB}},
            "reserved_bytes": {"all": {"current": reserved * MIB, "peak": 16 * MIB}},
        }

    job = training(statistics)
    job.end_step()
    job.step()
    figures = [tuple(value // MIB for value in row[3:6]) for row in job.rows]
    assert figures == [(1, 4, 1), (6, 8, 6), (3, 16, 9), (2, 16, 9)]


def test_a_fault_ends_the_sampling_once_and_not_the_training(training, capfd):
    def broken():
        raise RuntimeError("no statistics here")

    job = training(broken)
    for _ in range(3):
        job.step()
    assert job.rows == []
    assert all(parameter.grad is not None for parameter in job.model.parameters())
    assert capfd.readouterr().err.count("sampling of memory failed") == 1


def test_the_limit_is_noted_once(training, tmp_path):
    job = training()
    for _ in range(3):
        job.step()
    notes = [json.loads(line) for line in (tmp_path / "rank-00000.jsonl").read_text().splitlines()]
    assert [note["kind"] for note in notes] == ["memory-limit"]
    assert notes[0]["of"] == "rss"
    assert 0 < job.rows[0][6] < notes[0]["limit"]


def test_the_least_limit_of_nested_control_groups_counts(tmp_path):
    root, inner = tmp_path / "cgroup", tmp_path / "cgroup" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("5000\n")
    (root / "memory.max").write_text("9000\n")
    (tmp_path / "memory.max").write_text("1\n")
    assert list(memory._limits(control_groups.upwards(str(root), "/outer/inner", "memory.max"))) == [5000, 9000]
    assert list(memory._limits(control_groups.upwards(str(root), "/not/here", "memory.max"))) == [9000]


def test_a_compiled_step_is_compiled_as_it_is_without_the_probe(training):
    without = torch.autograd.backward
    job = training()
    watched = torch.autograd.backward
    torch.autograd.backward = without
    alone = compile_backward(job)
    torch.autograd.backward = watched
    assert compile_backward(job) == alone
    assert "backward" in {phase for _, phase in job.phases}


def compile_backward(job):
    """Graphs that a compiled step is made of, and where it leaves them."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda: job.loss().backward(), backend="eager")
    for _ in range(4):
        compiled()
        job.end_step()
    return dict(counters["stats"]), dict(counters["graph_break"])
