"""The exchanges of FSDP2 that `zero=2` and `zero=3` predict from a job of DDP, against those that FSDP2 makes."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.launched import carried_out_as
from esprof.replay.whatif.gradients.sharded_units import exchanges
from esprof.replay.whatif.gradients.units import units_of
from esprof.run.collective_names import collective_word
from tests.cases.record import JOBS, ranks, record

pytestmark = pytest.mark.integration


def recorded(path, how):
    ended = record(path, ranks(2, JOBS / "zero.py", how), skip=2, warmup=1, steps=3, stack_steps=0, shapes=True)
    assert ended.code == 0, ended.stderr
    return ended.run


@pytest.fixture(scope="module")
def units(tmp_path_factory):
    _, steps = units_of(recorded(tmp_path_factory.mktemp("ddp") / "run", "ddp"), 0)
    return steps[max(steps)]


@pytest.mark.parametrize("stage", ["2", "3"])
def test_fsdp_makes_the_predicted_exchanges(tmp_path, units, stage):
    run = recorded(tmp_path / "run", stage)
    dfg = build(run)
    for rank in (0, 1):
        mine = dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.rank == rank) & (dfg.step == dfg.marks.steps[1])
        nodes = np.flatnonzero(mine)
        nodes = nodes[np.argsort(dfg.recorded_ns[nodes])]
        made = [(collective_word(dfg.label(node)), int(dfg.bytes[node])) for node in nodes]
        predicted = exchanges(units, regather=stage == "3")
        assert made == [(carried_out_as(one.word), one.size) for one in predicted]
