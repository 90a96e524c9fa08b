"""What makes no sense is told by name: by a group of options when it is made, by the trainer where it has more to know."""

import inspect
import re
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset

from esprof.core.errors import UsageError
from esprof.elastic import Checkpoint, Data, Drain, ElasticTrainer, Gradients, Placement, Proof, Updates, register_codec
from esprof.elastic.compress.codecs.cast import Cast
from esprof.elastic.compress.codecs.registry import codec
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import GROUPS, small_trainer


def batches(**options):
    return Data([], **({"batch_size": 1} | options))


@pytest.mark.parametrize(
    ("made", "option"),
    [
        (small_trainer, {"n_est": 0}),
        (batches, {"batch_size": 0}),
        (batches, {"batch_size": 1.5}),
        (Updates, {"scheduler_by": "epochs"}),
        (batches, {"accumulate": 0}),
        (batches, {"num_workers": -1}),
        (partial(batches, num_workers=1), {"prefetch_factor": 0}),
        (Gradients, {"amp": "fp8"}),
        (Gradients, {"reduction": "foo"}),
        (Gradients, {"bucket_mb": 0}),
        (Gradients, {"clip_norm": -1.0}),
        (Gradients, {"clip_norm": float("nan")}),
        (Checkpoint, {"folder": ""}),
        (Checkpoint, {"folder": None}),
        (partial(Checkpoint, "folder"), {"every": -1}),
        (partial(Checkpoint, "folder"), {"every": 0.5}),
        (partial(Checkpoint, "folder"), {"keep": 0}),
        (Proof, {"determinism": "D2"}),
        (Drain, {"exit_code": 256}),
        (Drain, {"follower_exit_code": -1}),
        (Drain, {"notice": ""}),
        (Drain, {"within_s": 0}),
        (Drain, {"within_s": float("inf")}),
    ],
)
def test_an_option_that_makes_no_sense_is_named(made, option):
    ((name, value),) = option.items()
    with pytest.raises(UsageError) as raised:
        made(**option)
    assert raised.value.reason.startswith(f"{name}={value!r} is invalid: expected ")


def test_what_is_expected_is_said():
    with pytest.raises(UsageError, match="accumulate=0 is invalid: expected an integer of at least 1"):
        batches(accumulate=0)
    with pytest.raises(UsageError, match="'D2' is invalid: expected 'D0' or 'D1' or 'hetero-relaxed'"):
        Proof(determinism="D2")


@pytest.mark.parametrize(
    "made", [batches(), Updates(), Gradients(), Checkpoint("folder"), Proof(), Drain(), Placement()]
)
def test_what_was_checked_stays(made):
    with pytest.raises(FrozenInstanceError):
        made.__setattr__(next(iter(made.__dataclass_fields__)), None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"codec": "zip"}, "no codec 'zip'; known are none, "),
        ({"codec": "topk:2"}, "top-k needs a share between 0 and 1"),
        ({"codec": "topk:0.1", "amp": "fp16"}, "codec topk:0.1 stores a residual"),
    ],
)
def test_a_codec_that_does_not_fit_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        Gradients(**options)


def test_a_codec_of_one_s_own_is_known_once_it_is_registered():
    register_codec("mine", lambda _: Cast("mine", torch.float16))
    assert Gradients(codec="mine", amp="fp16").codec == "mine"


@pytest.mark.parametrize("spec", ["fp16:3", "bf16:x"])
def test_a_codec_without_an_argument_takes_none(spec):
    with pytest.raises(UsageError, match="takes no argument"):
        codec(spec)


def test_a_step_that_wants_more_than_a_trainer_has_is_reported():
    with pytest.raises(UsageError, match=r"step\(\) of ReduceLROnPlateau needs arguments .*'metrics'"):
        small_trainer(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(UsageError, match=r"step\(\) of LBFGS needs arguments .*'closure'"):
        small_trainer(optimizer=torch.optim.LBFGS)


def test_a_dataset_without_a_length_is_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(())

    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="the dataset has no length") as raised:
        ElasticTrainer(model, torch.optim.SGD(model.parameters()), loss_fn, Data(Endless(), batch_size=1), 1)
    assert raised.value.remedy.startswith("Pass Loaders instead")


def test_the_documentation_has_every_option_with_its_default():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "elastic.md").read_text()
    documented = re.findall(r"^\|[^|]*\| `(\w+)` \| ?(.*?) ?\|", page, re.MULTILINE)
    asked = [parameter for made in (*GROUPS.values(), ElasticTrainer) for parameter in options(made)]
    assert documented == [(name, default) for name, default in asked if name not in GROUPS]


def options(made):
    """Name and default, as the documentation has it, of each option; what has to be given has none."""
    for name, parameter in inspect.signature(made).parameters.items():
        default = parameter.default
        if default is not parameter.empty:
            yield name, f'"{default}"' if isinstance(default, str) else str(default)
        elif made is not ElasticTrainer:
            yield name, ""
