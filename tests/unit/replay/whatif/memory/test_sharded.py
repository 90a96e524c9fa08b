"""The peak of a sharded model, worked by hand: one listed unit of 100 bytes and a rest of 20, on two ranks."""

from dataclasses import replace

import numpy as np
import pytest

from esprof.replay.whatif.gradients.units import StepUnits, UnitPass
from esprof.replay.whatif.memory.blocks import MemoryBlocks, RankBlocks, Use
from esprof.replay.whatif.memory.passes import BackwardPasses
from esprof.replay.whatif.memory.peak import peak_memory
from esprof.replay.whatif.memory.sharded import with_sharded_units
from esprof.replay.whatif.scenario import Declined

STEP = StepUnits(
    listed=(UnitPass(forward_ns=10, forward_end_ns=20, backward_ns=50, reduced_ns=60, size=100),),
    rest=UnitPass(forward_ns=10, forward_end_ns=10, backward_ns=40, reduced_ns=80, size=20),
)


def memory(*blocks):
    """Of blocks (begin, end, bytes, use)."""
    begin, end, size, use = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
    return RankBlocks(
        rank=0,
        on_gpu=False,
        blocks=MemoryBlocks(begin, end, size, use.astype(np.int8), np.zeros(len(size), bool)),
        passes=BackwardPasses(np.array([40]), np.array([80]), np.zeros(0, np.int64)),
        span_ns=(0, 100),
        parameters=120,
        gradients=0,
        buffers=0,
        optimizer=240,
        buckets=120,
        other=0,
    )


RECORDED = memory(
    (12, 52, 300, Use.ACTIVATION),
    (42, 90, 20, Use.GRADIENT),
    (55, 90, 100, Use.GRADIENT),
)
HELD = 120 // 2 + 240 // 2


def peak_of(regather):
    return peak_memory(with_sharded_units(RECORDED, [STEP], 2, regather=regather), None)


def test_parameters_are_whole_from_the_forward_to_the_backward_pass():
    # Before the unit's backward pass: all parameters, the activation, and the gradient of the rest.
    assert peak_of(regather=False).peak == HELD + 120 + 300 + 20


def test_parameters_that_are_gathered_again_are_copied_then():
    # At the begin of the unit's backward pass the gathered parameters are there twice.
    assert peak_of(regather=True).peak == HELD + 20 + 300 + 20 + 100 + 100


def test_gradients_are_whole_until_they_are_reduced():
    blocks = with_sharded_units(RECORDED, [STEP], 2, regather=False).blocks
    gradients = blocks.where(blocks.use == Use.GRADIENT)
    found = set(zip(gradients.begin_ns.tolist(), gradients.end_ns.tolist(), gradients.bytes.tolist(), strict=True))
    assert found == {(42, 80, 20), (80, 90, 10), (55, 60, 100), (60, 90, 50)}


def test_gradients_that_are_kept_are_declined():
    with pytest.raises(Declined, match="kept from step to step"):
        with_sharded_units(replace(RECORDED, gradients=120), [STEP], 2, regather=True)
