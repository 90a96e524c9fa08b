"""Steps of FSDP2 in place of DDP, worked by hand: four units of 1 MiB, exchanges of 20 ms per MiB of an all-reduce."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.gradients.sharded_units import exchanges
from esprof.replay.whatif.gradients.units import units_of
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Scenario
from tests.cases.graph import run_of, step
from tests.cases.sharding import UNIT, ddp_run, ddp_step

GATHER_MS, SCATTER_MS = 15.0, 20.0
"""Of 1 MiB. The stem and the head are one unit of 2 MiB."""


def saving_ms(run, spec):
    (answer,) = what_if(run, build(run), [spec])
    assert answer.answered, answer.reason
    return answer.saving_us / 1000


def test_units_are_the_entries_of_the_list_and_the_rest():
    name, steps = units_of(ddp_run(), 0)
    assert name == "Model.layers"
    assert steps[1].sizes == (2 * UNIT, UNIT, UNIT)


def test_parameters_are_gathered_before_and_gradients_scattered_after_each_pass():
    _, steps = units_of(ddp_run(), 0)
    kept, again = (exchanges(steps[1], regather=regather) for regather in (False, True))
    gather, scatter = "all_gather", "reduce_scatter"
    assert [(one.word, one.unit) for one in kept] == [
        *((gather, 0), (gather, 1), (gather, 2)),
        *((scatter, 2), (scatter, 1), (scatter, 0)),
    ]
    assert [(one.word, one.unit) for one in again] == [
        *((gather, 0), (gather, 1), (gather, 2)),
        *((gather, 2), (gather, 1), (scatter, 2), (scatter, 1), (scatter, 0)),
    ]


def test_a_step_waits_for_each_exchange():
    # An all-reduce of 80 ms and half of an update of 8 go. Gathering 4 MiB takes 60 ms, reducing and scattering them 80.
    assert saving_ms(ddp_run(), "zero=2") == pytest.approx(80 + 4 - 60 - 80, abs=0.3)
    # Both layers are gathered once more.
    assert saving_ms(ddp_run(), "zero=3") == pytest.approx(80 + 4 - 60 - 80 - 30, abs=0.3)


def test_ranks_wait_for_each_other():
    """A rank whose forward pass of the stem takes 30 ms more delays all that follows."""
    rows = {rank: ddp_step() for rank in (0, 1)}
    run = run_of(rows)
    dfg = build(run)
    (found,) = what_if(run, dfg, ["zero=2,rank1.cpu=0.5x"])
    (one,) = what_if(run, dfg, ["zero=2,cpu=0.5x"])
    assert found.predicted_us == pytest.approx(one.predicted_us, rel=0.01)


def test_all_reduces_of_gradients_are_gone():
    run = ddp_run()
    dfg = build(run)
    changed = apply(Scenario(run, Blame(dfg, (1,)), dfg), parse("zero=3")).dfg
    sent = np.flatnonzero(changed.of(Cls.COMMUNICATION) & (changed.collective >= 0) & (changed.rank == 0))
    words = [changed.label(node) for node in sent]
    assert (words.count("all_gather"), words.count("reduce_scatter"), len(words)) == (5, 3, 8)
    assert changed.bytes[sent].sum() == (4 + 2 + 4) * UNIT


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"modules": False}, "no list of modules"),
        ({"shapes": False}, "sizes of its gradients were not recorded"),
    ],
)
def test_without_evidence_it_is_declined(how, reason):
    run = ddp_run(**how)
    (answer,) = what_if(run, build(run), ["zero=2"])
    assert reason in (answer.reason or "")


def test_gradients_of_several_passes_are_declined():
    run = run_of({rank: [step(1, 0, 600_000), *ddp_step()[1:], *ddp_step(2, 300.0)[1:]] for rank in (0, 1)})
    (answer,) = what_if(run, build(run), ["zero=2"])
    assert "several backward passes" in (answer.reason or "")
