"""What real jobs have besides one loss that reaches all parameters, and one optimizer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from esprof.core.assignment import Assignment
from esprof.core.errors import UsageError
from esprof.elastic import Checkpoint, Data, ElasticTrainer, Gradients, Placement, Proof, Updates
from tests.cases.elastic import Job, Paths, Samples, curve, loss_fn, on_threads, state_hash, static_curve
from tests.cases.elastic_job import Net, adamw, bits, bits_of_ranks, small_trainer

PARTS = [[[0, 1], [2, 3]], [[3], [0, 1, 2]], [[], [2, 0, 3, 1]]]


@pytest.mark.parametrize("parts", PARTS)
def test_parameters_that_some_losses_do_not_reach(parts):
    job = Job("paths", "adamw", find_unused=True, accumulate=2, samples=64)
    for bits_of_rank in on_threads(2, lambda transport: curve(job, {0: parts}, transport)):
        assert bits_of_rank == static_curve(job)


def test_what_no_loss_reaches_stays_as_it_is():
    trainer = small_trainer(model=Paths, find_unused=True, optimizer=lambda ps: torch.optim.AdamW(ps, weight_decay=0.5))
    before = [parameter.clone() for parameter in trainer.state.model.ways[2].parameters()]
    used = trainer.state.model.body.weight.clone()
    bits(trainer, 3)
    for parameter, value in zip(trainer.state.model.ways[2].parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter not in trainer.state.optimizers[0].state
    assert not torch.equal(trainer.state.model.body.weight, used)
    with pytest.raises(UsageError, match="no gradient reached ways"):
        small_trainer(model=Paths).step()


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 64))
        self.critic = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, count):
        return self.generator(torch.randn(count, 8))


def of_critic(model, batch):
    real = batch[0].flatten(1)
    judged = model.critic(torch.cat([real, model(len(real)).detach()])).squeeze(1)
    truth = torch.cat([torch.ones(len(real)), torch.zeros(len(real))])
    return F.binary_cross_entropy_with_logits(judged, truth)


def of_generator(model, batch):
    judged = model.critic(model(len(batch[0]))).squeeze(1)
    return F.binary_cross_entropy_with_logits(judged, torch.ones(len(batch[0])))


def gan(transport=None, parts=((0, 1, 2, 3),), losses=(of_critic, of_generator), **options):
    torch.manual_seed(0)
    model = Gan()
    optimizers = [
        torch.optim.Adam(model.critic.parameters(), 1e-2),
        torch.optim.Adam(model.generator.parameters(), 1e-2),
    ]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in optimizers]
    assignment = Assignment.of(parts)
    data = Data(Samples(64, tokens=False), batch_size=2)
    return ElasticTrainer(
        model,
        optimizers,
        list(losses),
        data,
        4,
        updates=Updates(scheduler=schedulers),
        placement=Placement(transport=transport, assignment=assignment),
        gradients=Gradients(clip_norm=1.0, bucket_mb=0.001),
        **options,
    )


def both(trainer, steps):
    found = []
    for _ in range(steps):
        losses = trainer.step().losses
        found.append((losses, *(state_hash(trainer.state.model, one) for one in trainer.state.optimizers)))
    return found


def test_losses_of_a_gan_alternate_from_step_to_step():
    trainer = gan()
    model, (critic, generator) = trainer.state.model, trainer.state.optimizers
    for step in range(4):
        before = [parameter.clone() for parameter in model.parameters()]
        trainer.step()
        changed = {
            name.split(".")[0]
            for (name, now), was in zip(model.named_parameters(), before, strict=True)
            if (now != was).any()
        }
        assert changed == {"generator" if step % 2 else "critic"}
    assert [one.param_groups[0]["lr"] for one in (critic, generator)] == [2.5e-3, 2.5e-3]


@pytest.mark.parametrize("parts", PARTS)
def test_a_gan_has_the_same_bits_wherever_it_runs(parts, tmp_path):
    static = both(gan(), 6)
    for ranks in on_threads(2, lambda transport: both(gan(transport, parts), 6)):
        assert ranks == static
    saved = gan(checkpoint=Checkpoint(tmp_path))
    both(saved, 3)
    saved.save()
    assert both(gan(checkpoint=Checkpoint(tmp_path)), 3) == static[3:]


def test_there_are_as_many_losses_as_optimizers():
    with pytest.raises(UsageError, match="there are 3 loss functions and 2 optimizers"):
        gan(losses=(of_critic, of_generator, of_critic))


def test_several_optimizers_step_by_one_loss():
    def trainer(split):
        torch.manual_seed(0)
        model = Net(5)
        parameters = list(model.parameters())
        groups = [parameters[:2], parameters[2:]] if split else [parameters]
        optimizers = [torch.optim.SGD(group, 0.1, momentum=0.9) for group in groups]
        return ElasticTrainer(model, optimizers, loss_fn, Data(Samples(61, tokens=False), batch_size=2), 4)

    whole, split = trainer(split=False), trainer(split=True)
    for _ in range(3):
        assert whole.step().losses == split.step().losses
    assert all(map(torch.equal, whole.state.model.parameters(), split.state.model.parameters()))


def test_what_is_called_before_the_update_and_after_the_step():
    seen, results = [], []

    def clip(step):
        norm = nn.utils.clip_grad_norm_(trainer.state.model.parameters(), 1.0)
        seen.append((step, float(norm)))

    trainer = small_trainer(before_update=clip, after_step=results.append, clip_norm=None)
    found = bits(trainer, 3)
    assert found == bits(small_trainer(clip_norm=1.0), 3)
    assert [step for step, norm in seen if norm > 0] == [0, 1, 2]
    assert [result.losses for result in results] == [losses for losses, _ in found]


def test_groups_of_parameters_have_settings_of_their_own():
    def grouped(parameters):
        parameters = list(parameters)
        return torch.optim.AdamW(
            [{"params": parameters[:3], "lr": 0.1}, {"params": parameters[3:], "weight_decay": 0.0}]
        )

    static = bits(small_trainer(optimizer=grouped), 3)
    assert static != bits(small_trainer(optimizer=adamw), 3)
    for ranks in bits_of_ranks(PARTS[1], optimizer=grouped):
        assert ranks == static


def test_a_job_computes_with_as_many_threads_as_it_began_with(tmp_path, capfd):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        options = {"threads": None, "folder": tmp_path}
        trainer = small_trainer(**options)
        assert torch.get_num_threads() == 1
        assert "1 CPU thread a process, not 2: so that bits do not depend" in capfd.readouterr().err
        trainer.step()
        trainer.save()
        torch.set_num_threads(3)
        small_trainer(**options)
        assert torch.get_num_threads() == 1
        assert "1 CPU thread a process, not 3: as in the job's checkpoint" in capfd.readouterr().err
        small_trainer(**options)
        assert capfd.readouterr().err == ""
        small_trainer(threads=2)
        assert torch.get_num_threads() == 2
        with pytest.raises(Exception, match=r"machine.threads is 1 there and 2 here"):
            small_trainer(**options | {"threads": 2})
    finally:
        torch.set_num_threads(before)
    assert Proof().threads is None
