"""A search for the learning rate on real processes: its number of processes changes no bit."""

import pytest

from esprof.elastic import Assignment, LearningRateSearch
from tests.cases.elastic import on_processes, state_hash
from tests.cases.elastic_job import small_trainer

pytestmark = pytest.mark.integration


def searched(parts):
    trainer = small_trainer(assignment=Assignment.of(parts))
    search = LearningRateSearch(trainer, low=1e-3, high=1e-1, candidates=2, trial_steps=8, stage_steps=16)
    found = []
    for result in search.fit(4):
        bits = state_hash(trainer.state.model, trainer.state.optimizers[0])
        found.append((tuple(loss.hex() for loss in result.losses), bits))
    return found, [(stage.step, stage.rate, stage.tried_steps, stage.is_certain) for stage in search.stages]


@pytest.mark.promise
def test_one_and_three_processes_choose_the_same_rates_and_end_with_the_same_bits():
    ((alone,),) = on_processes(1, searched, [([[0, 1, 2, 3]],)])
    (ranks,) = on_processes(3, searched, [([[0], [1, 2], [3]],)])
    assert len(ranks) == 3
    assert all(rank == alone for rank in ranks)
    assert alone[1]
