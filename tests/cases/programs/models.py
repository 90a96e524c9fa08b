"""Models: what they keep from one call to the next, and how they are built."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as spectral_norm_by_hook
from torch.utils.checkpoint import checkpoint

from tests.cases.programs.script import KINDS, WIDTH, Points, Script, either, equal, like, mean_loss, net, refused


class Tokens(Points):
    """Five tokens each."""

    def __getitem__(self, index):
        return torch.arange(index, index + 5) % 7, index % KINDS


class Embedded(nn.Module):
    """Mean of embeddings, and a layer upon it."""

    def __init__(self, **options):
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH, **options)
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))


# State that persists from one call to the next.


@equal
def counter_that_nothing_reads():
    """Forward counts its calls for the log."""

    class Counted(nn.Tanh):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    return Script(net(Counted()))


@equal
def counter_that_scales():
    """Forward warms up with the number of its calls."""

    class WarmUp(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * min(1.0, self.calls / 10)

    return Script(net(WarmUp()))


@equal
def counter_of_the_class():
    """The same with a counter that the class has for all its modules."""

    class WarmUp(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x * min(1.0, self.calls / 10)

    return Script(net(WarmUp()))


class Recurrent(nn.Module):
    """An LSTM whose last state is detached and, optionally, passed to the next batch."""

    def __init__(self, *, keep):
        super().__init__()
        self.keep, self.state = keep, None
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x):
        hidden, cell = self.cell(x, self.state)
        self.state = (hidden.detach(), cell.detach()) if self.keep else None
        return hidden


@like("memory_bank_in_a_list")
@either
def hidden_state_that_is_kept():
    """Truncated back-propagation through time, with the state in an attribute."""
    return Script(net(Recurrent(keep=True)))


@like("batch_norm")
@equal
def hidden_state_anew():
    """An LSTM that begins each batch with zeros."""
    return Script(net(Recurrent(keep=False)))


@like("counter_that_nothing_reads")
@equal
def last_output_for_the_log():
    """Forward leaves its output in an attribute, which the next one overwrites unread."""

    class Watched(nn.Tanh):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    return Script(net(Watched()))


@equal
def auxiliary_loss_in_an_attribute():
    """Forward leaves a penalty where the loss of the same call takes it, as mixtures of experts do."""

    class Penalised(nn.Tanh):
        def forward(self, x):
            self.penalty = x.square().mean()
            return super().forward(x)

    return Script(net(Penalised()), lambda model, batch: mean_loss(model, batch) + 0.1 * model[1].penalty)


@equal
def mask_made_at_first_use():
    """A constant that is computed for the current shape and cached, like rotary embeddings."""

    class Masked(nn.Module):
        mask = None

        def forward(self, x):
            if self.mask is None or self.mask.shape != x.shape:
                self.mask = (torch.arange(x.numel()).view_as(x) % 3 > 0).float()
            return x * self.mask

    return Script(net(Masked()))


class Queue(nn.Module):
    """Contrasts its input with those of the last calls, which it keeps in `self.queue`."""

    def forward(self, x):
        out = x - self.queue.mean(0)
        self.queue.copy_(torch.cat([x.detach(), self.queue])[: len(self.queue)])
        return out


@like("buffer_that_is_not_saved")
@equal
def queue_in_a_buffer():
    """MoCo's queue as MoCo has it: a buffer, which follows EST 0."""
    queue = Queue()
    queue.register_buffer("queue", torch.zeros(6, WIDTH))
    return Script(net(queue))


@like("memory_bank_in_a_list")
@either
def queue_in_an_attribute():
    """The same queue as a plain tensor, which is in no state_dict."""
    queue = Queue()
    queue.queue = torch.zeros(6, WIDTH)
    return Script(net(queue))


@either
def memory_bank_in_a_list():
    """The means of all calls so far, in a list that grows."""

    class Bank(nn.Module):
        def __init__(self):
            super().__init__()
            self.means = []

        def forward(self, x):
            out = x - sum(self.means) / (len(self.means) or 1)
            self.means.append(x.detach().mean(0))
            return out

    return Script(net(Bank()))


@like("memory_bank_in_a_list")
@either
def statistics_in_an_attribute():
    """A running maximum by which forward divides, without a buffer for it."""

    class Scaled(nn.Module):
        peak = 1.0

        def forward(self, x):
            self.peak = max(self.peak, 0.99 * self.peak + 0.1 * x.abs().max().item())
            return x / self.peak

    return Script(net(Scaled()))


@either
def buffer_made_in_forward():
    """A running mean that becomes a buffer at the first call."""

    class Centred(nn.Module):
        def forward(self, x):
            if "mean" not in self._buffers:
                self.register_buffer("mean", torch.zeros(WIDTH))
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    return Script(net(Centred()))


@like("buffer_made_in_forward")
@either
def buffer_put_in_place_of_the_old():
    """A running mean whose buffer is replaced, not updated in place."""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(WIDTH))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x - self.mean

    return Script(net(Centred()))


@equal
def buffer_that_is_not_saved():
    """A running mean in a buffer that is in no state_dict."""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

        def forward(self, x):
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    return Script(net(Centred()))


# Normalisation.


@equal
def batch_norm():
    """BatchNorm, whose statistics follow EST 0."""
    return Script(net(nn.BatchNorm1d(WIDTH)))


@like("batch_norm")
@equal
def batch_norm_with_the_plain_mean():
    """BatchNorm(momentum=None), whose weights of the mean follow a counter."""
    return Script(net(nn.BatchNorm1d(WIDTH, momentum=None)))


@like("frozen_layer")
@equal
def batch_norm_of_a_finished_backbone():
    """BatchNorm that is in eval mode while the rest trains."""
    return Script(net(nn.BatchNorm1d(WIDTH).eval()))


@like("spectral_norm_with_a_hook")
@equal
def spectral_norm():
    """The parametrization, which iterates a buffer at each call."""
    model = net()
    parametrizations.spectral_norm(model[0])
    return Script(model)


@equal
def spectral_norm_with_a_hook():
    """The older one, which sets the weight as a plain attribute before each call."""
    model = net()
    spectral_norm_by_hook(model[0])
    return Script(model)


@like("tied_weights")
@equal
def weight_norm():
    """The parametrization: two parameters for one weight."""
    model = net()
    parametrizations.weight_norm(model[0])
    return Script(model)


# Weights that are shared, frozen, late, or written by forward.


@equal
def tied_weights():
    """One weight in two layers."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, KINDS))
    model[2].weight = model[0].weight
    return Script(model)


@equal
def frozen_layer():
    """A layer that does not train."""
    model = net()
    model[0].requires_grad_(False)
    return Script(model)


@like("tied_weights")
@equal
def embedding():
    """Embedded tokens."""
    return Script(Embedded(), data=Tokens())


@like("weights_clipped_by_data_in_forward")
@either
def embedding_of_bounded_norm():
    """Embedding(max_norm), which shortens its weights in forward."""
    return Script(Embedded(max_norm=1.0), data=Tokens())


@refused
def embedding_with_sparse_gradients():
    """Embedding(sparse=True)."""
    return Script(
        Embedded(sparse=True), data=Tokens(), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    )


class Clipped(nn.Linear):
    """Holds its weights within bounds, at each call."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.2, 0.2).mul_(0.999)
        return super().forward(x)


class ClippedByData(nn.Linear):
    """The same past autograd."""

    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-0.2, 0.2) * 0.999
        return super().forward(x)


@like("weights_clipped_by_data_in_forward")
@either
def weights_clipped_in_forward():
    """Weights are written under no_grad, so each EST that a process runs leaves its trace."""
    return Script(net(Clipped(WIDTH, WIDTH)))


@either
def weights_clipped_by_data_in_forward():
    """The same by `.data`, which autograd does not see."""
    return Script(net(ClippedByData(WIDTH, WIDTH)))


@equal
def lazy_layer_after_a_first_call():
    """LazyLinear that has seen an input before the trainer is made."""
    model = net(nn.LazyLinear(WIDTH))
    model(torch.zeros(2, WIDTH))
    return Script(model)


@either
def lazy_layer_without_a_first_call():
    """LazyLinear that has no weights yet."""
    return Script(net(nn.LazyLinear(WIDTH)))


@refused
def branch_that_some_batches_take():
    """An expert that is used where the batch is so, and has no gradient elsewhere."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return (self.left if x.sum() > 0 else self.right)(x)

    return Script(net(Routed()))


# Wrappers.


class Checkpointed(nn.Module):
    """Runs a block with dropout `times` times, without storing its activations."""

    def __init__(self, *, reentrant, times=1):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh())
        self.reentrant, self.times = reentrant, times

    def forward(self, x):
        for _ in range(self.times):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


@like("activation_checkpointing_twice")
@equal
def activation_checkpointing():
    """Forward is made again in backward, with the same dropout."""
    return Script(net(Checkpointed(reentrant=False)))


@equal
def activation_checkpointing_twice():
    """The same for a block that is used twice."""
    return Script(net(Checkpointed(reentrant=False, times=2)))


@equal
def reentrant_checkpointing():
    """The older kind, of what is used once."""
    return Script(net(Checkpointed(reentrant=True)))


@refused
def reentrant_checkpointing_twice():
    """The older kind, of what is used twice: gradients come twice."""
    return Script(net(Checkpointed(reentrant=True, times=2)))


@like("compiled_with_autograd")
@equal
def compiled():
    """torch.compile(backend="eager"): Dynamo's graph, eager kernels."""
    return Script(torch.compile(net(nn.Dropout(0.3)), backend="eager"))


@equal
def compiled_with_autograd():
    """torch.compile(backend="aot_eager"): forward and backward as graphs."""
    return Script(torch.compile(net(nn.GELU()), backend="aot_eager"))


@like("auxiliary_loss_in_an_attribute")
@equal
def output_in_a_dict():
    """A model that returns logits and loss in a dict, as those of transformers do."""

    class Outputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, points, kinds):
            logits = self.net(points)
            return {"logits": logits, "loss": F.cross_entropy(logits, kinds)}

    return Script(Outputs(), lambda model, batch: model(*batch)["loss"])
