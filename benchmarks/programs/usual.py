"""Programs as people write them, which any number of processes must train to the same bits."""

import copy
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, Sampler, WeightedRandomSampler

from benchmarks.programs.training import LATE, STEPS, Changed, Points, Training, mlp, right
from esprof.elastic import Gradients, Updates
from tests.cases.programs.script import rank


@right
def mlp_with_sgd():
    return Training()


@right
def dropout_and_adamw():
    return Training(mlp(nn.Dropout(0.3)), optimizer=lambda model: AdamW(model.parameters(), lr=1e-2))


@right
def batch_norm():
    return Training(mlp(nn.BatchNorm1d(32)))


@right
def convolutions():
    layers = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1))
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers, nn.Flatten(), nn.Linear(128, 8))
    return Training(model, optimizer=lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True))


class Text(Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 32, (960, 17), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(32, 32), nn.Parameter(torch.zeros(16, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.words(tokens) + self.places, src_mask=mask, is_causal=True))


@right
def gpt():
    def loss(model, tokens):
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Training(Gpt(), loss, Text(), lambda model: AdamW(model.parameters(), lr=3e-3))


@right
def teacher():
    teacher = mlp().eval().requires_grad_(False)

    def loss(model, batch):
        with torch.no_grad():
            taught = teacher(batch[0]).softmax(dim=1)
        said = model(batch[0])
        return F.cross_entropy(said, batch[1]) + F.kl_div(said.log_softmax(dim=1), taught, reduction="batchmean")

    return Training(loss=loss)


@right
def average_of_weights():
    """Renewed between two steps; the model ends as its average."""
    model = mlp()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    return Training(
        model,
        between=lambda trainer, step: average.update_parameters(model),
        end=lambda: model.load_state_dict(average.module.state_dict()),
    )


@right
def average_that_teaches():
    model = mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        said = model(batch[0] + 0.1 * torch.randn_like(batch[0]))
        return F.cross_entropy(said, batch[1]) + F.mse_loss(said, teacher(batch[0]))

    @torch.no_grad()
    def follow(result):
        for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 0.05)

    return Training(model, loss, options={"updates": Updates(after_step=follow)})


class Lookahead(SGD):
    """Every five steps the weights go half of the way back."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if "slow" not in state:
                state["slow"], state["steps"] = weight.detach().clone(), torch.tensor(0)
            state["steps"] += 1
            if state["steps"] % 5 == 0:
                weight.copy_(state["slow"].lerp_(weight, 0.5))


@right
def lookahead():
    return Training(optimizer=lambda model: Lookahead(model.parameters(), lr=0.1, momentum=0.9))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
        self.critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, count):
        return self.maker(torch.randn(count, 4))


@right
def gan():
    def of_critic(model, batch):
        made = model(len(batch[0])).detach()
        return F.softplus(model.critic(made)).mean() + F.softplus(-model.critic(batch[0])).mean()

    def of_maker(model, batch):
        return F.softplus(-model.critic(model(len(batch[0])))).mean()

    def optimizers(model):
        return [Adam(part.parameters(), lr=1e-3) for part in (model.critic, model.maker)]

    return Training(Gan(), [of_critic, of_maker], optimizer=optimizers)


class Focal:
    def __init__(self, power, smoothing):
        self.power, self.smoothing = power, smoothing

    def __call__(self, model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1], reduction="none", label_smoothing=self.smoothing)
        return ((1 - (-loss).exp()) ** self.power * loss).mean()


@right
def loss_object():
    return Training(loss=Focal(2, 0.1))


@right
def weighted_sampler():
    points = Points()
    weights = 1.0 + (points.kinds == 0).float()
    return Training(data=points, batches={"sampler": WeightedRandomSampler(weights.tolist(), 960)})


class EasyFirst(Sampler):
    def __init__(self, points):
        self.order = points.points.norm(dim=1).argsort().tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


@right
def own_sampler():
    points = Points()
    return Training(data=points, batches={"sampler": EasyFirst(points)})


@right
def noise_in_loader_workers():
    noisy = Changed(lambda data, index, point: point + 0.1 * torch.randn(16))
    return Training(data=noisy, batches={"num_workers": 2})


@right
def noise_of_numpy_and_random():
    def masked(data, index, point):
        kept = torch.from_numpy((np.random.rand(16) > 0.1).astype(np.float32))
        return point * kept * random.uniform(0.9, 1.1)

    return Training(data=Changed(masked), batches={"num_workers": 1})


@right
def accumulated_batches():
    return Training(batches={"batch_size": 4, "accumulate": 2})


@right
def cosine_schedule():
    return Training(
        options=lambda optimizer: {"updates": Updates(scheduler=lr_scheduler.CosineAnnealingLR(optimizer, STEPS))}
    )


@right
def schedule_by_epoch():
    def options(optimizer):
        return {"updates": Updates(scheduler=lr_scheduler.StepLR(optimizer, 1, gamma=0.7), scheduler_by="epoch")}

    return Training(options=options)


@right
def one_cycle_and_clipping():
    def options(optimizer):
        scheduler = lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
        return {"updates": Updates(scheduler=scheduler), "gradients": Gradients(clip_norm=1.0)}

    return Training(optimizer=lambda model: AdamW(model.parameters(), lr=1e-3), options=options)


class Lion(Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.sub_(group["lr"] * mean.lerp(weight.grad, 0.1).sign())
                mean.lerp_(weight.grad, 0.01)


@right
def own_optimizer():
    return Training(optimizer=lambda model: Lion(model.parameters(), 1e-3))


@right
def two_optimizers():
    def optimizers(model):
        return [SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=1e-2)]

    return Training(optimizer=optimizers)


@right
def bf16():
    return Training(options={"gradients": Gradients(amp="bf16")})


@right
def evaluation_on_all_ranks():
    def between(trainer, step):
        if step % 20 == 19:
            trainer.state.model.eval()
            with torch.no_grad():
                trainer.state.model(torch.ones(4, 16))
            trainer.state.model.train()

    return Training(between=between)


@right
def agreement_to_stop():
    return Training(between=lambda trainer, step: trainer.agree(rank() == 0 and step >= 100))


@right
def two_groups():
    def optimizer(model):
        made = SGD(model[0].parameters(), lr=0.1)
        made.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
        return made

    return Training(optimizer=optimizer)


@right
def learning_rate_on_all_ranks():
    def between(trainer, step):
        if step == LATE:
            trainer.state.optimizers[0].param_groups[0]["lr"] = 0.01

    return Training(between=between)


@right
def curriculum_by_step():
    growing = Changed(lambda data, index, point: point + 0.05 * data.level * torch.randn(16), level=1)

    def between(trainer, step):
        if step == LATE:
            growing.level = 3

    return Training(data=growing, batches={"num_workers": 1}, between=between)


@right
def generator_of_each_sample():
    def rolled(data, index, point):
        return point.roll(int(torch.randint(0, 3, (), generator=torch.Generator().manual_seed(index))))

    return Training(data=Changed(rolled))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)
        self.middle = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, points):
        found = self.first(points).relu()
        for layer in self.middle:
            if torch.rand(()) < 0.7:
                found = found + layer(found).relu()
        return self.last(found)


@right
def stochastic_depth():
    return Training(Deep(), options={"gradients": Gradients(find_unused=True)})


class Counted(nn.Module):
    """Adds less noise at each call."""

    def __init__(self):
        super().__init__()
        self.layers, self.calls = mlp(), 0

    def forward(self, points):
        self.calls += 1
        return self.layers(points + torch.randn_like(points) / (1 + self.calls))


@right
def norms_for_the_log():
    model, norms = Counted(), []

    def note(step):
        norms.append(float(nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])))

    return Training(model, options={"updates": Updates(before_update=note)})
