"""What the elastic runtime does not train is refused, with what to do instead."""

from collections import UserDict, namedtuple

import pytest
import torch
from torch import nn

from esprof.core.errors import UsageError
from esprof.elastic import Assignment, Data, ElasticTrainer
from esprof.elastic.runtime.support import check_supported, to_device
from tests.cases.elastic import Job, Samples, trainer
from tests.cases.elastic_job import small_trainer

Pair = namedtuple("Pair", "left right")


class Encoded(UserDict):
    """A mapping of a type of its own, as tokenizers make."""

    encodings = None


def refusal(raised) -> tuple[str, str | None]:
    return raised.value.reason, raised.value.remedy


@pytest.mark.parametrize(
    ("model", "reason", "remedy"),
    [
        (
            nn.Sequential(nn.SyncBatchNorm(3)),
            "0 is a SyncBatchNorm, which needs all workers at once; ESTs of a rank run one after the other",
            "Use BatchNorm or GroupNorm.",
        ),
        (
            nn.Sequential(nn.ReLU(), nn.Embedding(3, 2, sparse=True)),
            "1 has sparse gradients, which are not supported",
            "Pass sparse=False.",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model, reason, remedy):
    with pytest.raises(UsageError) as raised:
        check_supported(model, [torch.optim.SGD(model.parameters(), 0.1)])
    assert refusal(raised) == (reason, remedy)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(UsageError, match="the optimizer has 2 parameters that are not in the model"):
        check_supported(nn.Linear(2, 2), [torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)])


class Forgetful(nn.Module):
    """Leaves out one of its layers."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(64, 5)
        self.unused = nn.Linear(5, 5)

    def forward(self, x):
        return self.used(x.flatten(1))


def test_a_parameter_without_a_gradient_is_named():
    model = Forgetful()
    elastic = ElasticTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        Data(Samples(8, tokens=False), batch_size=2),
        2,
    )
    with pytest.raises(UsageError) as raised:
        elastic.step()
    assert raised.value.reason == "no gradient reached unused.bias, unused.weight"
    assert raised.value.remedy.startswith(
        "Freeze it (requires_grad_(False)), let the loss depend on it, or pass Gradients(find_unused=True)"
    )


@pytest.mark.parametrize("parts", [[[0, 1], [1, 2]], [[0, 2]], [[]], [[1]]])
def test_what_is_no_partition_is_refused(parts):
    with pytest.raises(UsageError, match="is not a partition of the ESTs"):
        Assignment.of(parts)


def test_an_assignment_to_other_processes_is_refused():
    with pytest.raises(UsageError, match="the assignment has 4 ESTs on 2 processes, but the job has 4 and 1"):
        trainer(Job(), [[0, 1], [2, 3]])


def test_a_codec_is_set_for_a_step_ahead():
    elastic = trainer(Job(), [range(4)])
    elastic.step()
    with pytest.raises(UsageError, match="step 0 is over: step 1 is next"):
        elastic.set_codec("fp16", 0)
    with pytest.raises(UsageError, match="no codec 'zip'"):
        elastic.set_codec("zip", 1)


def test_error_feedback_under_a_loss_scale_is_refused():
    with pytest.raises(UsageError, match="loss scale of fp16 would falsify: use bf16"):
        trainer(Job(amp="fp16", codecs=((0, "topk:0.1"),)), [range(4)])


def test_a_plain_all_reduce_is_of_level_d0_alone():
    with pytest.raises(UsageError) as raised:
        small_trainer(reduction="all-reduce")
    assert raised.value.remedy == "Pass Gradients(reduction='tree'), or Proof(determinism='D0')."


def test_a_batch_keeps_its_shape_on_its_way_to_a_device():
    batch = {"x": [torch.ones(2), "text"], "pair": Pair(torch.zeros(1), 3), "both": (torch.ones(1), None)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"][0].is_meta
    assert moved["x"][1] == "text"
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].left.is_meta
    assert moved["pair"].right == 3
    assert moved["both"][0].is_meta
    assert moved["both"][1] is None


def test_a_mapping_keeps_its_type_and_attributes():
    batch = Encoded(x=torch.ones(2))
    batch.encodings = ["text"]
    moved = to_device(batch, torch.device("meta"))
    assert type(moved) is Encoded
    assert moved["x"].is_meta
    assert moved.encodings == ["text"]
    assert not batch["x"].is_meta


def test_what_can_move_itself_does():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = to_device({"x": packed}, torch.device("meta"))["x"]
    assert moved.data.is_meta
    assert moved.batch_sizes.device.type == "cpu"  # As torch wants it.


def test_an_expanded_buffer_is_refused():
    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(1).expand(4))
    model.register_buffer("one", torch.ones(1).expand(1))
    with pytest.raises(UsageError, match="buffer scale is expanded") as raised:
        check_supported(model, [torch.optim.SGD(model.parameters(), 0.1)])
    assert raised.value.remedy == "Register scale.contiguous()."
