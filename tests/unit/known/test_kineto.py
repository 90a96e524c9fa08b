"""What is written against what `esprof.load` reads."""

from functools import cache

import numpy as np
import pytest

import esprof
from benchmarks.known.jobs import SHAPES, job
from benchmarks.known.kineto import BASE_NS, OPENED_NS, Recording, write
from benchmarks.known.machine import run

STEPS = 4
"""Recorded steps of each job."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Jobs with their timelines and what is read of them, by shape and how they were recorded; each is made once."""

    @cache
    def made(shape):
        one = job(shape, 3, steps=STEPS)
        return one, run(one.program)

    @cache
    def recorded(shape, **how):
        one, timeline = made(shape)
        folder = tmp_path_factory.mktemp(shape)
        write(folder, one.program, timeline, one.groups, Recording(first=one.recording.first, **how))
        return one, timeline, esprof.load(folder)

    return recorded


@pytest.mark.parametrize(
    "shape", ["ddp", *(pytest.param(one, marks=pytest.mark.slow) for one in SHAPES if one != "ddp")]
)
def test_every_shape_is_read_without_warnings(recorded, shape):
    one, _, found = recorded(shape)
    assert not found.warnings
    assert list(found.ranks) == list(range(len(one.program.ranks)))


def test_times_are_read_to_the_nanosecond(recorded):
    one, timeline, found = recorded("ddp")
    for rank, marks in enumerate(timeline.steps):
        events = found.events(rank)
        steps = events.where(events.is_kind("step"))
        begins = [at for number, at in marks if number is not None and number >= one.recording.first]
        assert steps.ints("start_ns").tolist() == [BASE_NS + OPENED_NS + at for at in begins]
        assert (steps.ints("start_ns") + steps.ints("dur_ns")).tolist()[-1] == BASE_NS + OPENED_NS + marks[-1][1]


def test_steps_that_are_not_told_of_are_those_of_the_optimizers(recorded):
    one, timeline, found = recorded("gloo", steps=False)
    tables = [found.steps(rank) for rank in found.ranks]
    begins = np.max([steps.ints("start_ns") for steps in tables], axis=0)
    ends = np.max([steps.ints("start_ns") + steps.ints("dur_ns") for steps in tables], axis=0)
    spans = np.array(list(timeline.optimizer_spans(one.recording.first).values()))
    assert len(spans) == sum(number is not None and number >= one.recording.first for number, _ in timeline.steps[0])
    assert np.stack([begins, ends], axis=1)[1:].tolist() == (BASE_NS + OPENED_NS + spans)[1:].tolist()


def test_kernels_have_their_launch_and_collectives_what_they_move(recorded):
    one, timeline, found = recorded("fsdp")
    events = found.events(0)
    kernels = events.where(events.is_kind("kernel", "memcpy", "collective"))
    opened = timeline.steps[0][one.recording.first][1]
    rows = [row for row in timeline.rows if row.rank == 0 and isinstance(row.lane, int) and row.start >= opened]
    assert sorted(kernels.ints("correlation").tolist()) == sorted(row.correlation for row in rows)
    collectives = events.where(events.is_kind("collective"))
    assert set(collectives.texts("collective")) == {"all_gather", "reduce_scatter"}
    assert np.all(collectives.ints("in_bytes") > 0)


def test_messages_name_their_peer(recorded):
    _, _, found = recorded("pipeline")
    events = found.events(0)
    collectives = events.where(events.is_kind("collective"))
    assert {"send", "recv", "all_reduce"} == set(collectives.texts("collective"))
    assert set(collectives.ints("peer").tolist()) == {-1, 1}


def test_a_call_describes_what_its_kernel_does_not(recorded):
    _, _, found = recorded("tensor", described=False)
    events = found.events(0)
    collectives = events.where(events.is_kind("collective"))
    assert np.all(collectives.ints("in_bytes") > 0)
    assert len(set(collectives.texts("group"))) == 2


def test_synchronisation_is_told_where_it_is_switched_on(recorded):
    _, _, found = recorded("ddp", syncs=True)
    events = found.events(0)
    syncs = events.where(events.is_kind("sync"))
    assert {"Stream Wait Event", "Stream Sync"} <= set(syncs.texts("name"))
    waits = syncs.where(np.array([name == "Stream Wait Event" for name in syncs.texts("name")]))
    records = events.where(np.array([name == "cudaEventRecord" for name in events.texts("name")]))
    assert set(waits.ints("sync_correlation").tolist()) <= set(records.ints("correlation").tolist())


def test_what_is_missing_is_named(recorded):
    _, _, found = recorded("ddp", missing=2)
    assert 2 not in found.ranks
    assert [warning.code for warning in found.warnings] == ["rank-missing"]


def test_a_lost_step_is_lost_on_its_rank_only(recorded):
    first = recorded("ddp")[0].recording.first
    _, _, found = recorded("ddp", lost=(1, first + 2))
    numbers = {rank: {step for step in found.events(rank).ints("step").tolist() if step >= 0} for rank in (0, 1)}
    assert numbers[0] - numbers[1] == {first + 2}
