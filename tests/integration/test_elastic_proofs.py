"""Programs that begin to depend on the rank late are stopped within the period of the proofs, on real processes."""

from collections import UserList

import pytest
import torch.distributed as dist

from esprof.core.errors import EsprofError
from esprof.elastic import Assignment
from esprof.run.logs import HISTORY
from tests.cases.elastic import loss_fn, on_processes
from tests.cases.elastic_job import bits, small_trainer

pytestmark = pytest.mark.integration

EVEN, UNEVEN = [[0, 1], [2, 3]], [[3], [0, 1, 2]]
PERIOD = 75
"""Of two ESTs on a rank; a step later than it the programs below must have been stopped."""


# In the two losses below a UserList counts: the search for state does not look into it, so nothing moves with the ESTs.
def renewed_weights():
    """From its 60th call on, the loss is weighted by what this process has seen last."""
    seen, calls = UserList([1.0]), UserList()

    def loss(model, batch):
        calls.append(1)
        found = loss_fn(model, batch)
        if len(calls) >= 60:
            found = found * seen[0]
        if len(calls) % 20 == 0:
            seen[0] = 1 + float(batch[0].mean()) ** 2
        return found

    return loss


def counted_outside():
    """From its 60th call on, the loss grows with the calls in this process."""
    calls = UserList()

    def loss(model, batch):
        calls.append(1)
        return loss_fn(model, batch) * (1 + len(calls) / 1000 if len(calls) > 60 else 1)

    return loss


def ranked():
    """From its 60th call on, the loss depends on the rank."""
    calls = []

    def loss(model, batch):
        calls.append(1)
        return loss_fn(model, batch) * (1 + (dist.get_rank() if len(calls) > 60 else 0))

    return loss


LOSSES = {"right": lambda: loss_fn, "weights": renewed_weights, "counted": counted_outside, "ranked": ranked}


def clamp(trainer):
    """Rank 0 alone bounds its weights at step 40, unnoticed by torch."""
    if trainer.next_step == 40 and dist.get_rank() == 0:
        for parameter in trainer.state.model.parameters():
            parameter.data.clamp_(-0.02, 0.02)


def trained(loss, steps, ests=None, *, clamps=False, moves_at=None, save=False, **options):
    """(next step, error, bits of the last step) of this rank, from the last checkpoint on."""
    trainer = small_trainer(loss=LOSSES[loss](), assignment=Assignment.of(ests) if ests else None, **options)
    found = []
    try:
        while trainer.next_step < steps:
            if trainer.next_step == moves_at:
                trainer.assign(Assignment.of(UNEVEN))
            found = bits(trainer, 1)
            if clamps:
                clamp(trainer)
        if save:
            trainer.save()
        trainer.flush()
    except EsprofError as error:
        return trainer.next_step, str(error), found
    return trainer.next_step, "", found


def on_two(*arguments, **options):
    """What both ranks come to."""
    return on_processes(2, _call, [(arguments, options)])[0]


def _call(arguments, options):
    return trained(*arguments, **options)


@pytest.mark.parametrize("loss", ["weights", "counted", "ranked"])
def test_a_loss_that_depends_on_its_process_late_is_stopped_within_the_period(loss):
    for _, error, _ in on_two(loss, 3 * PERIOD, EVEN):
        assert f"ran it in step {PERIOD} than when" in error
        assert "the first step that is not proven is 2" in error


def test_weights_changed_on_one_rank_are_stopped_within_the_period():
    for _, error, _ in on_two("right", 3 * PERIOD, EVEN, clamps=True):
        assert f"step {PERIOD}.value of conv.weight is" in error


def test_a_job_that_is_only_to_be_warned_goes_on(tmp_path):
    options = {"on_divergence": "warn", "telemetry": tmp_path / "run"}
    for step, error, _ in on_two("ranked", 80, EVEN, **options):
        assert (step, error) == (80, "")
    assert [(event.step, event.proven) for event in HISTORY.read(tmp_path / "run") if event.what == "diverged"] == [
        (PERIOD, 1)
    ]


def test_a_job_that_is_right_is_never_stopped_wherever_it_goes_on(tmp_path):
    options = {"prove_every": 2}
    whole = trained("right", 24, **options)
    on_two("right", 12, EVEN, moves_at=7, save=True, folder=tmp_path, **options)
    assert trained("right", 16, save=True, folder=tmp_path, **options)[:2] == (16, "")
    for one in on_two("right", 24, UNEVEN, folder=tmp_path, **options):
        assert one == whole
