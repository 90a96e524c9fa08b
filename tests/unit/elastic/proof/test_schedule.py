"""Proofs come at an interval that all ranks know, and meet each EST, rank and loss in turn."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.elastic import Assignment
from esprof.elastic.proof.schedule import ProofSchedule
from tests.cases.properties import thorough

SCHEDULE = ProofSchedule(None, 0, losses=1, steps_per_epoch=1, across_ranks=True)


def proofs(schedule, assignment, count):
    """The first proofs of a job: (step, turn)."""
    period = schedule.period(assignment)
    found = [(step, schedule.turn(step, assignment)) for step in range(period * count)]
    return [(step, turn) for step, turn in found if turn is not None]


@pytest.mark.parametrize(
    ("parts", "period"), [([[0]], 150), ([[0], [1]], 150), ([[0, 1], [2, 3]], 75), ([[0, 1, 2, 3], [4]], 38)]
)
def test_there_is_a_proof_in_so_many_turns(parts, period):
    assignment = Assignment.of(parts)
    assert SCHEDULE.period(assignment) == period == ceil(150 / max(map(len, parts)))


@pytest.mark.parametrize(("asked", "period"), [(0, None), (1, 1), (7, 7)])
def test_a_period_that_is_asked_for_is_kept(asked, period):
    assignment = Assignment.even(4, 2)
    schedule = replace(SCHEDULE, prove_every=asked)
    assert schedule.period(assignment) == period
    steps = [step for step in range(20) if schedule.turn(step, assignment)]
    assert steps == (list(range(0, 20, period)) if period else [])


@thorough(50)
@given(
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 60),
    st.none() | st.integers(1, 12),
    st.data(),
)
def test_each_est_runs_on_each_other_rank_with_each_loss(n_est, world, losses, steps_per_epoch, asked, data):
    owners = data.draw(st.lists(st.integers(0, world - 1), min_size=n_est, max_size=n_est))
    assignment = Assignment.of([[est for est in range(n_est) if owners[est] == rank] for rank in range(world)])
    schedule = ProofSchedule(asked, 0, losses, steps_per_epoch, across_ranks=True)
    others = max(1, world - 1)
    found = proofs(schedule, assignment, n_est * others * losses)
    assert len(found) == n_est * others * losses
    met = {(turn.est, turn.guest, step % losses) for step, turn in found}
    expected = {
        (est, guest, loss)
        for est in range(n_est)
        for guest in range(world)
        for loss in range(losses)
        if world == 1 or guest != owners[est]
    }
    assert met == expected
    assert all(turn.owner == owners[turn.est] for _, turn in found)
    if asked is not None:
        assert schedule.period(assignment) <= asked


def test_all_steps_of_an_epoch_are_met_in_the_end():
    schedule = replace(SCHEDULE, steps_per_epoch=50)
    assignment = Assignment.even(4, 2)
    assert {step % 50 for step, _ in proofs(schedule, assignment, 50)} == set(range(50))


def test_where_no_other_rank_can_the_owner_runs_it_again():
    schedule = replace(SCHEDULE, prove_every=1, across_ranks=False)
    turns = [schedule.turn(step, Assignment.even(4, 2)) for step in range(4)]
    assert [(turn.est, turn.guest == turn.owner) for turn in turns] == [(est, True) for est in range(4)]


def test_the_first_steps_of_a_process_run_twice_as_a_whole():
    schedule = replace(SCHEDULE, first_step=30)
    assert [step for step in range(25, 40) if schedule.is_whole(step)] == [25, 26, 27, 28, 29, 30, 31]
    assert not any(replace(schedule, prove_every=0).is_whole(step) for step in range(25, 40))
