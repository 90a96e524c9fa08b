"""What a script sets in attributes while a job trains: it reaches loader processes at once, and is in checkpoints."""

import json

import pytest
from torch.utils.data import Subset

from esprof.core.errors import MismatchError
from esprof.elastic import Assignment
from esprof.elastic.checkpoint.snapshot import capture, with_common_values
from esprof.elastic.runtime.attributes import Attributes
from tests.cases.elastic import Samples, on_threads
from tests.cases.elastic_job import Tempered, bits, small_trainer


class Curriculum(Samples):
    """Samples that a script makes harder."""

    def __init__(self):
        super().__init__(61, tokens=False)
        self.level = 0
        self.table = [1.0]

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image * (1 + self.level) * self.table[0], label


def harder(trainer, samples, step):
    samples.level = step // 2


def by_another_table(trainer, samples, step):
    samples.table = [1 + step / 10]


def cooler(trainer, samples, step):
    trainer.state.model.temperature *= 1.1


def frozen_statistics(trainer, samples, step):
    if step == 2:
        trainer.state.model.norm.eval()


def script(until, change, wraps=lambda samples: samples, **options):
    """The bits of each step of a job whose script calls `change(trainer, samples, step)` after each step."""
    samples = Curriculum()
    trainer, found = small_trainer(samples=wraps(samples), model=Tempered, **options), []
    while trainer.next_step < until:
        step = trainer.next_step
        found += bits(trainer, 1)
        change(trainer, samples, step)
    if trainer.checkpoints is not None:
        trainer.save()
    trainer.close()
    return found


def nested(samples):
    return Subset(samples, range(60))


@pytest.mark.parametrize("change", [harder, by_another_table])
def test_loader_processes_see_a_changed_dataset_at_once(change):
    assert script(5, change, wraps=nested, num_workers=2) == script(5, change, wraps=nested)


@pytest.mark.parametrize("change", [harder, cooler, frozen_statistics])
def test_a_job_goes_on_with_what_its_script_has_set(tmp_path, change):
    seen = script(4, change, wraps=nested, folder=tmp_path)
    assert seen + script(7, change, wraps=nested, folder=tmp_path) == script(7, change, wraps=nested)


def test_what_one_rank_sets_is_in_no_checkpoint(tmp_path):
    def body(transport):
        trainer = small_trainer(model=Tempered, transport=transport, assignment=Assignment.of([[0, 1], [2, 3]]))
        trainer.step()
        trainer.state.model.temperature = 2.0
        if transport.rank == 0:
            trainer.state.model.drop.p = 0.7
        trainer.state.attributes.note()
        found = with_common_values(capture(trainer.state), transport)
        return json.loads(found["shared/attributes"].numpy().tobytes())

    assert on_threads(2, body) == [{"model.temperature": 2.0}] * 2


def test_a_model_without_the_changed_module_is_refused():
    attributes = Attributes(Tempered())
    with pytest.raises(MismatchError, match=r"the script had set model.tail.p to 0.5 before the checkpoint"):
        attributes.restore({"model.tail.p": 0.5})
