"""An elastic job's own account of its steps: what is noted, and the Run that it is written as."""

import itertools
import time

import pytest
import torch
from torch import nn

import esprof
from esprof.elastic import Data, ElasticTrainer, Proof
from esprof.elastic.telemetry import recorder
from esprof.elastic.telemetry.spans import StepSpans
from esprof.elastic.telemetry.watched_transport import TimedCollective, WatchedTransport
from esprof.replay.building.build import build_counted

CPU = torch.device("cpu")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((3,), float(index)), torch.tensor([index / 32])


def trainer(path, **batches):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    return ElasticTrainer(
        model,
        optimizer,
        loss,
        Data(Numbers(), batch_size=2, **batches),
        2,
        telemetry=path,
        proof=Proof(prove_every=0),
    )


class SlowLink:
    """A transport of two processes, of which only one is there: each transfer is done when it is waited for."""

    rank, world = 0, 2

    def broadcast(self, tensor, source):
        return Done()

    exchange = gather = add = None


class Done:
    def wait(self):
        time.sleep(0.002)


def rows(run, *kinds):
    return [row for row in run.events(0).arrow.to_pylist() if row["kind"] in kinds]


def test_the_run_has_each_phase_of_each_step_for_each_est(tmp_path):
    job = trainer(tmp_path / "run", accumulate=2)
    for _ in range(3):
        job.step()
    job.flush()
    run = esprof.load(tmp_path / "run")
    of_step = [row for row in rows(run, "op", "loader") if row["step"] == 1]
    est_step = ["switch", "next", "forward", "backward", "next", "forward", "backward", "switch"]
    expected = [(what, 0) for what in [*est_step, "stage"]] + [(what, 1) for what in est_step]
    named = [("next" if row["kind"] == "loader" else row["name"], row["est"]) for row in of_step]
    assert named == [*expected, ("reduce", None), ("optimizer", None)]
    assert all(one["start_ns"] + one["dur_ns"] <= two["start_ns"] for one, two in itertools.pairwise(of_step))


def test_steps_follow_one_another_and_count_their_samples(tmp_path):
    job = trainer(tmp_path / "run")
    for _ in range(3):
        job.step()
    job.flush()
    steps = esprof.load(tmp_path / "run").steps(0).arrow.to_pylist()
    assert [(step["step"], step["phase"], step["samples"]) for step in steps] == [(n, "timed", 4) for n in range(3)]
    assert all(one["start_ns"] + one["dur_ns"] == two["start_ns"] for one, two in itertools.pairwise(steps))


def test_the_newest_steps_are_kept_and_written_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_MAX_STEPS_RETAINED", 4)
    job = trainer(tmp_path / "run")
    for _ in range(3):
        job.step()
    assert not (tmp_path / "run" / "run.json").exists()
    for _ in range(3):
        job.step()
    steps = esprof.load(tmp_path / "run").steps(0).arrow.to_pylist()
    assert [(step["step"], step["phase"]) for step in steps] == [(n, "timed") for n in range(4)]
    job.flush()
    steps = esprof.load(tmp_path / "run").steps(0).arrow.to_pylist()
    # The first Run was written in step 4, which is no measure of the others.
    assert [(step["step"], step["phase"]) for step in steps] == [
        (2, "timed"),
        (3, "timed"),
        (4, "export"),
        (5, "timed"),
    ]


def test_replay_explains_the_steps(tmp_path):
    job = trainer(tmp_path / "run")
    for _ in range(5):
        job.step()
    job.flush()
    built = build_counted(esprof.load(tmp_path / "run"))
    assert built.dfg.marks.steps == tuple(range(5))
    assert {"forward", "backward", "switch", "stage", "optimizer"} <= set(built.dfg.names)


def test_telemetry_changes_no_bit(tmp_path):
    losses = []
    for path in (None, tmp_path / "run"):
        losses.append([result.losses for result in trainer(path).fit(epochs=1)])
    assert losses[0] == losses[1]
    assert (tmp_path / "run" / "run.json").exists()


def test_without_telemetry_nothing_is_kept():
    job = trainer(None)
    job.step()
    assert job.spans.take() == []


def test_spans_know_their_est():
    spans = StepSpans(CPU, keep=True)
    with spans.est_step(3), spans("forward"):
        pass
    with spans("reduce"):
        pass
    assert [(span.what, span.est) for span in spans.take()] == [("forward", 3), ("reduce", None)]


def test_a_collective_is_recorded_with_its_est_step_and_its_wait():
    spans = StepSpans(CPU, keep=True)
    transport = WatchedTransport(SlowLink(), spans)
    with spans.est_step(1):
        work = transport.broadcast(torch.zeros(4), 1)
    work.wait()
    (transfer,) = transport.take()
    assert (transfer.kind, transfer.sequence, transfer.root, transfer.est) == ("broadcast", 0, 1, 1)
    assert (transfer.in_bytes, transfer.out_bytes, transfer.dtype) == (16, 16, "float32")
    ((begin, end),) = transfer.waits
    assert transfer.launched_ns <= begin
    assert end - begin >= 2_000_000
    assert transfer.end_ns == end
    assert transport.take() == []


@pytest.mark.parametrize(
    ("waits", "left"),
    [
        ([], [(10, 20)]),
        ([(0, 5), (25, 30)], [(10, 20)]),
        ([(12, 14)], [(10, 12), (14, 20)]),
        ([(5, 12), (18, 25)], [(12, 18)]),
        ([(5, 25)], []),
        ([(10, 12), (12, 14)], [(14, 20)]),
    ],
)
def test_a_span_without_its_waits(waits, left):
    assert list(recorder._without(waits, 10, 20)) == left


def test_gloos_two_threads_take_up_transfers_in_turn():
    def transfer(start, end):
        return TimedCollective("broadcast", 0, 0, 4, 4, "float32", None, start, start, end)

    step = recorder._Step(
        0, 0, 100, "timed", 1, [], [transfer(0, 10), transfer(1, 5), transfer(2, 20), transfer(30, 40)], ""
    )
    found = [(row.tid, row.start_ns, row.start_ns + row.dur_ns) for row in recorder._Lanes("gloo").rows(step)]
    assert found == [(0, 0, 10), (1, 1, 5), (1, 5, 20), (0, 30, 40)]


class QuickQueue(SlowLink):
    """One that calls a transfer done as soon as it is queued, as NCCL does."""

    def broadcast(self, tensor, source):
        return Queued()


class Queued(Done):
    def get_future(self):
        future = torch.futures.Future()
        future.set_result(None)
        return future


@pytest.mark.parametrize(("device", "at_the_wait"), [("meta", True), ("cpu", False)])
def test_of_tensors_on_a_device_the_wait_tells_when_a_transfer_ended(device, at_the_wait):
    transport = WatchedTransport(QuickQueue(), StepSpans(CPU))
    transport.broadcast(torch.zeros(4, device=device), 0).wait()
    (transfer,) = transport.take()
    ((begin, end),) = transfer.waits
    assert transfer.end_ns == end if at_the_wait else transfer.end_ns <= begin


def test_a_transfer_is_called_by_its_backend_whose_streams_or_threads_take_it_up():
    def transfer(start, end):
        return TimedCollective("all_reduce", 0, None, 4, 4, "float32", None, start, start, end)

    step = recorder._Step(0, 0, 100, "timed", 1, [], [transfer(0, 10), transfer(1, 12)], "")
    found = [(row.name, row.tid, row.start_ns) for row in recorder._Lanes("nccl").rows(step)]
    assert found == [("nccl:all_reduce", 0, 0), ("nccl:all_reduce", 0, 10)]
