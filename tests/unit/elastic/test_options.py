"""What makes no sense is told when the trainer is made."""

import pytest
import torch

from esprof.elastic.reduce.codecs import codec
from esprof.errors import UsageError
from tests.cases.elastic_job import small_trainer


@pytest.mark.parametrize(
    "option",
    [
        {"n_est": 0},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"accumulate": 0},
        {"num_workers": -1},
        {"clip_norm": -1.0},
        {"clip_norm": float("nan")},
        {"bucket_mb": 0},
        {"amp": "fp8"},
        {"reduction": "foo"},
        {"scheduler_by": "epochs"},
    ],
)
def test_an_option_that_makes_no_sense_is_named(option):
    ((name, value),) = option.items()
    with pytest.raises(UsageError) as raised:
        small_trainer(**option)
    assert raised.value.reason.startswith(f"{name}={value!r} makes no sense: it is ")


def test_checkpoints_need_a_folder():
    with pytest.raises(UsageError, match="checkpoint_every= is of no use without a folder"):
        small_trainer(checkpoint_every=2)


@pytest.mark.parametrize("spec", ["fp16:3", "bf16:x"])
def test_a_codec_without_an_argument_takes_none(spec):
    with pytest.raises(UsageError, match="takes no argument"):
        codec(spec)


def test_a_step_that_wants_more_than_a_trainer_has_is_told():
    with pytest.raises(UsageError, match=r"step\(\) of ReduceLROnPlateau wants more .*'metrics'"):
        small_trainer(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(UsageError, match=r"step\(\) of LBFGS wants more .*'closure'"):
        small_trainer(optimizer=torch.optim.LBFGS)
