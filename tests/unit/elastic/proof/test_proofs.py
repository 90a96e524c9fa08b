"""A job whose bits come to depend on where an EST runs is stopped or warned at the next proof; ranks are threads here."""

import time
from collections import UserList

import msgspec
import pytest
import torch

from esprof.core.errors import EsprofError, MismatchError, UsageError
from esprof.elastic import Assignment, ElasticTrainer
from esprof.elastic.checkpoint.checkpoint import in_folder, read_manifest
from esprof.run.logs import HISTORY
from tests.cases.elastic import Samples, loss_fn, on_threads
from tests.cases.elastic_job import Net, bits, grouped, small_trainer

EVEN = [[0, 1], [2, 3]]


def trained(steps, loss_of=lambda transport, made: loss_fn, between=lambda trainer, rank: None, **options):
    """What each of two ranks comes to: its bits, or the error. `loss_of` also gets the list that will hold the trainer."""

    def body(transport):
        made, found = [], []
        loss = loss_of(transport, made)
        made.append(small_trainer(loss=loss, transport=transport, assignment=Assignment.of(EVEN), **options))
        try:
            while made[0].next_step < steps:
                found += bits(made[0], 1)
                between(made[0], transport.rank)
        except EsprofError as error:
            return error
        return found

    return on_threads(2, body)


def by_rank(transport, made):
    """A loss that depends on the rank from step 3 on."""
    rank = transport.rank
    return lambda model, batch: loss_fn(model, batch) * (1 + rank * (bool(made) and made[0].next_step >= 3))


def test_a_loss_that_comes_to_depend_on_the_rank_is_stopped_at_the_next_proof():
    for error in trained(20, by_rank, prove_every=5):
        assert isinstance(error, UsageError)
        assert "the loss of EST 1 differed when rank 1 ran it in step 5 than when rank 0 did" in error.reason
        assert "differing between these ranks: loss.rank" in error.reason
        assert "the first step that is not proven is 2" in error.reason


def leaving_its_rank(transport, made):
    """A loss that leaves its rank in a variable from step 3 on, and does not use it yet."""
    rank, left = transport.rank, None

    def loss(model, batch):
        nonlocal left
        left = rank if made and made[0].next_step >= 3 else None
        return loss_fn(model, batch)

    return loss


def test_a_value_that_comes_to_depend_on_the_rank_is_stopped_at_the_next_proof():
    for error in trained(20, leaving_its_rank, prove_every=5):
        assert isinstance(error, UsageError)
        assert "the value of loss.left of EST 1 differed when rank 1 ran it in step 5" in error.reason


def timed(transport, made):
    """A loss that keeps the time."""
    started = 0.0

    def loss(model, batch):
        nonlocal started
        started = time.perf_counter()
        return loss_fn(model, batch)

    return loss


def test_a_time_that_is_only_kept_stops_no_job_and_is_told_once(capfd):
    assert trained(9, timed, prove_every=1) == trained(9, prove_every=0)
    assert capfd.readouterr().err.count("proofs leave out loss.started: ") == 1


def clamp(trainer, rank):
    if rank == 0 and trainer.next_step == 6:
        for parameter in trainer.state.model.parameters():
            parameter.data.clamp_(-0.01, 0.01)


def test_a_rank_whose_weights_have_changed_unnoticed_is_stopped_at_the_next_proof():
    for error in trained(20, between=clamp, prove_every=4):
        assert isinstance(error, MismatchError)
        assert "step 8.value of conv.weight is" in error.reason
        assert "the first step that is not proven is 5" in error.reason


def counting(above):
    """A loss that is multiplied by the number of its calls, hidden from the search for state, once that exceeds a number."""
    calls = UserList()

    def loss(model, batch):
        calls.append(1)
        return loss_fn(model, batch) * (len(calls) if len(calls) > above else 1)

    return loss


def test_a_job_of_one_process_runs_the_turn_again_itself():
    trainer = small_trainer(loss=counting(24), prove_every=5)
    with pytest.raises(UsageError, match="the loss of EST 1 differed when rank 0 ran it a second time in step 5"):
        bits(trainer, 10)


def test_a_job_that_is_only_to_be_warned_goes_on_and_says_so(tmp_path):
    options = {"on_divergence": "warn", "telemetry": tmp_path / "run", "hash_log": tmp_path / "log"}
    with pytest.warns(UserWarning, match="the loss of EST 1 differed when rank 1 ran it in step 5"):
        ranks = trained(9, by_rank, prove_every=5, **options)
    assert [len(found) for found in ranks] == [9, 9]
    (event,) = [event for event in HISTORY.read(tmp_path / "run") if event.what == "diverged"]
    assert (event.step, event.proven) == (5, 1)
    last = msgspec.json.decode((tmp_path / "log").read_bytes().splitlines()[-1])
    assert (last["step"], last["proven"], last["diverged"]) == (8, 1, 5)


def test_the_last_checkpoint_that_is_proven_is_kept_and_named(tmp_path):
    trainer = small_trainer(folder=tmp_path, every=1, keep=1, loss=counting(40), prove_every=5)
    with pytest.raises(UsageError, match="the first step that is not proven is 6") as raised:
        bits(trainer, 20)
    trainer.close()
    assert raised.value.remedy.endswith(f"The last checkpoint that is proven is {tmp_path / 'step-00000006'}.")
    assert [path.name for path in in_folder(tmp_path)] == ["step-00000006", "step-00000010"]
    found = [read_manifest(path) for path in in_folder(tmp_path)]
    assert [(one.proven, one.diverged) for one in found] == [(5, None), (5, 10)]


def test_a_job_that_was_stopped_goes_on_from_what_is_proven(tmp_path):
    options = {"folder": tmp_path, "every": 1, "prove_every": 5}
    with pytest.raises(UsageError):
        bits(small_trainer(loss=counting(40), **options), 20)
    skips = "step 10 found other bits: the job skips this checkpoint and resumes from step-00000006"
    with pytest.warns(UserWarning, match=skips):
        resumed = small_trainer(loss=counting(400), **options)
    assert bits(resumed, 8) == bits(small_trainer(), 14)[6:]
    assert resumed.state.proof.proven == 10
    resumed.close()
    assert {read_manifest(path).diverged for path in in_folder(tmp_path)} == {None}


def test_a_job_that_goes_on_knows_what_was_proven(tmp_path):
    trainer = small_trainer(folder=tmp_path, prove_every=5)
    bits(trainer, 7)
    trainer.save()
    resumed = small_trainer(folder=tmp_path, prove_every=5)
    assert resumed.state.proof.proven == 5
    bits(resumed, 1)
    assert resumed.state.proof.proven == 7


def test_a_job_that_has_diverged_stays_so_when_it_goes_on(tmp_path):
    trainer = small_trainer(folder=tmp_path, loss=counting(0), on_divergence="warn")
    with pytest.warns(UserWarning, match="differed when step 0 was run a second time"):
        bits(trainer, 3)
    trainer.save()
    resumed = small_trainer(folder=tmp_path, loss=counting(0), on_divergence="warn")
    bits(resumed, 8)
    assert (resumed.state.proof.proven, resumed.state.proof.diverged) == (None, 0)


def moved(trainer, rank):
    if trainer.next_step == 4:
        trainer.assign(Assignment.of([[3], [0, 1, 2]]))


@pytest.mark.parametrize(
    "options", [{"accumulate": 2}, {"drop_last": False}, {"amp": "bf16"}, {"codec": "topk:0.3"}, {"find_unused": True}]
)
def test_proofs_change_no_bits_and_stop_no_job_that_is_right(options):
    plain = trained(9, between=moved, prove_every=0, **options)
    assert len(plain[0]) == 9
    assert trained(9, between=moved, prove_every=1, **options) == plain


def test_alternating_losses_are_proven_in_turn():
    calls = UserList()

    def loss(number):
        def of(model, batch):
            calls.append(number)
            return loss_fn(model, batch)

        return of

    model = Net(5)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    options = grouped({"dataset": Samples(61, tokens=False), "batch_size": 2, "prove_every": 4})
    trainer, proofs = ElasticTrainer(model, optimizers, [loss(0), loss(1)], n_est=4, **options), []
    for step in range(14):
        calls.clear()
        trainer.step()
        proofs += [(step, calls[0])] * (len(calls) == 5)
    assert proofs == [(3, 1), (6, 0), (9, 1), (12, 0)]
