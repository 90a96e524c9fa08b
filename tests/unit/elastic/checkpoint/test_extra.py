"""What a script keeps besides model and optimizer, and what modules add to their state, in checkpoints."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.checkpoint.extra import check_names
from esprof.elastic.verify.diff import diff
from tests.cases.elastic import loss_fn, on_threads, state_hash
from tests.cases.elastic_job import Tempered, small_trainer


class Counter:
    """Of samples and losses, as scripts keep them."""

    def __init__(self, samples=0):
        self.samples = samples
        self.losses = []

    def state_dict(self):
        return {
            "samples": self.samples,
            "losses": tuple(self.losses),
            "best": OrderedDict(at=torch.tensor(self.samples)),
        }

    def load_state_dict(self, state):
        self.samples, self.losses = state["samples"], list(state["losses"])
        assert state["best"]["at"] == self.samples


class WithExtraState(Tempered):
    def get_extra_state(self):
        return {"temperature": self.temperature, "table": torch.full((2,), self.temperature)}

    def set_extra_state(self, state):
        assert state["table"].tolist() == [state["temperature"]] * 2
        self.temperature = state["temperature"]


class Script:
    """A training script that averages the weights, counts, and changes a module's own setting after each step."""

    def __init__(self, **options):
        torch.manual_seed(0)
        model = WithExtraState()
        self.counter = Counter()
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        state = {"average": self.average, "counter": self.counter}
        self.trainer = small_trainer(model=lambda: model, state=state, **options)

    def train(self, until):
        """What the job is after each step up to that one."""
        found = []
        while self.trainer.next_step < until:
            result = self.trainer.step()
            self.average.update_parameters(self.trainer.state.model)
            self.counter.samples += sum(result.samples)
            self.counter.losses.append(result.loss)
            self.trainer.state.model.temperature *= 1.25
            hashes = [
                state_hash(model, self.trainer.state.optimizers[0])
                for model in (self.trainer.state.model, self.average)
            ]
            found.append((hashes, self.counter.samples, tuple(self.counter.losses)))
        self.trainer.flush()
        return found


@pytest.mark.parametrize("saving", ["asked", "every"])
def test_a_job_goes_on_with_what_its_script_keeps(tmp_path, saving):
    expected = Script().train(8)
    first = Script(folder=tmp_path, every=2 if saving == "every" else 0)
    seen = first.train(4)
    if saving == "asked":
        first.trainer.save()
    second = Script(folder=tmp_path)
    assert second.trainer.next_step == 4
    assert seen + second.train(8) == expected


def test_a_checkpoint_in_the_background_has_what_the_script_did_after_its_step(tmp_path):
    script = Script(folder=tmp_path, every=2, keep=9)
    script.train(5)
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-00000002", "step-00000004"]
    assert Script(folder=tmp_path).counter.samples == 4 * 8


def test_the_checkpoint_that_a_job_goes_on_from_is_not_written_again(tmp_path):
    Script(folder=tmp_path, every=2).train(2)
    before = (tmp_path / "step-00000002").stat().st_ino
    Script(folder=tmp_path, every=2).train(3)
    assert (tmp_path / "step-00000002").stat().st_ino == before


def refusal(kind, **options):
    with pytest.raises(kind) as raised:
        small_trainer(**options)
    return raised.value


def test_a_checkpoint_with_other_names_is_refused_with_both(tmp_path):
    first = small_trainer(folder=tmp_path, state={"a": Counter(), "b": Counter()})
    first.step()
    first.save()
    counter = Counter(7)
    error = refusal(MismatchError, folder=tmp_path, state={"b": counter, "c": counter})
    assert error.reason == "state has ['a', 'b'] in the checkpoint and ['b', 'c'] in this job"
    assert error.path == tmp_path / "step-00000001"
    assert "`state` with the names of the checkpoint" in error.remedy
    assert counter.samples == 7
    assert "['a', 'b'] in the checkpoint and [] in this job" in refusal(MismatchError, folder=tmp_path).reason


def test_a_module_whose_state_the_checkpoint_lacks_is_reported(tmp_path):
    model = nn.Sequential(nn.Flatten(), WithExtraState())
    with pytest.raises(
        MismatchError, match=r"extra_state has \[\] in the checkpoint and \['1'\] in this job"
    ) as raised:
        check_names(model, {}, {"optimizer": {}}, tmp_path)
    assert raised.value.path == tmp_path
    check_names(model, {}, {"extra_state": {"1": {}}}, tmp_path)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"net": object()}, r"state['net'], a object, has no state_dict() and load_state_dict()"),
        ({"a/b": Counter()}, "state['a/b']: a name must be a string without a slash"),
        ({"": Counter()}, "state['']: a name must be a string without a slash"),
        ({3: Counter()}, "state[3]: a name must be a string without a slash"),
    ],
)
def test_what_cannot_be_kept_is_named(state, reason):
    assert refusal(UsageError, state=state).reason == reason


def test_what_a_checkpoint_cannot_hold_is_named_before_the_first_step(tmp_path):
    counter = Counter()
    counter.losses = [{1, 2}]
    error = refusal(UsageError, folder=tmp_path, state={"counter": counter})
    assert error.reason == "shared/state/counter/losses/0 is a set, which a checkpoint cannot hold"


def test_ranks_that_start_with_other_state_are_refused():
    def body(transport):
        small_trainer(transport=transport, state={"counter": Counter(transport.rank)}, folder="nowhere")

    with pytest.raises(MismatchError, match=r"terms.state.counter is \w+ on rank 0 and \w+ on rank 1"):
        on_threads(2, body)


def test_a_log_of_steps_has_what_the_script_keeps(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, spoiled in zip(paths, (0, 1), strict=True):
        counter = Counter()
        trainer = small_trainer(hash_log=path, state={"counter": counter})
        trainer.step()
        counter.samples = spoiled
        trainer.step()
    found = diff(*paths)
    assert (found.steps_equal, found.difference.step) == (1, 1)
    assert found.difference.tensor.name in ("state", "state/counter/best/at")


def test_evaluating_the_average_changes_nothing():
    script, alone = Script(), Script()
    expected = alone.train(3)
    found = []
    for until in (1, 2, 3):
        found += script.train(until)
        loss_fn(script.average.eval(), (torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)))
    assert found == expected
