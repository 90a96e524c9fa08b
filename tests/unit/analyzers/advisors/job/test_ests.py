"""Advice for one elastic job on synthetic runs: costs of ESTs, their best assignment, the predicted step."""

import msgspec
import pytest

from esprof.analyzers.advisors.job.ests import advise_ests, check_plan
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError, InputError, MismatchError, UsageError
from esprof.core.plan import read_plan, write_plan
from esprof.replay.replayed import Replayed, answer
from esprof.replay.whatif.graph.est_load import EstLoad
from esprof.reports.terminal.advice.placement import draw_ests
from tests.cases.elastic_runs import ISSUE, elastic_run

EVEN = [[0, 1, 2, 3], [4, 5, 6, 7]]
COMMUNICATION, UPDATE = 50, 10


def advised(ests=EVEN, est=(3_000, 9_000), **more):
    return advise_ests(Replayed.of(elastic_run(ests, est, communication=COMMUNICATION, update=UPDATE, **more)))


def est_load(run):
    replayed = Replayed.of(run)
    return replayed, EstLoad.of(run, replayed.pricer.dfg, replayed.pricer.steps)


def test_costs_of_each_rank():
    _, found = est_load(elastic_run(EVEN, (3_000, 9_000), (4_000, 12_000)))
    costs = found.costs
    assert [costs[rank].est_ns for rank in (0, 1)] == pytest.approx([3e6, 9e6])
    assert [costs[rank].last_ns for rank in (0, 1)] == pytest.approx([4e6, 12e6], abs=ISSUE * 1_000)
    assert all(cost.is_measured for cost in costs.values())
    assert found.assignment == Assignment.of(EVEN)


def test_costs_of_a_rank_with_one_est_are_scaled_from_others():
    _, found = est_load(elastic_run([[0, 1, 2], [3]], (3_000, 9_000), (6_000, 12_000)))
    assert not found.costs[1].is_measured
    assert found.costs[1].est_ns == pytest.approx(6e6, rel=1e-3)


def test_costs_of_a_rank_without_ests_are_scaled_from_its_update():
    """The updates of both ranks are equal, so the empty rank counts as equally fast."""
    run = elastic_run([list(range(8)), []], (3_000, 1), communication=COMMUNICATION, update=1_000)
    _, found = est_load(run)
    assert [found.costs[1].est_ns, found.costs[1].last_ns] == pytest.approx([3e6, 3e6], rel=3e-3)
    assert not found.costs[1].is_measured
    advice = advise_ests(Replayed.of(run))
    assert [len(ests) for ests in advice.decision.ests] == [4, 4]
    assert advice.value == pytest.approx(4 * 3_000 + COMMUNICATION + 1_000, rel=0.01)
    assert advice.decision.ranks[1].est_from == "assumed"
    assert any("rank 1 ran no EST" in warning for warning in advice.warnings)


def test_the_faster_rank_gets_more_ests():
    found = advised()
    assert [len(ests) for ests in found.decision.ests] == [6, 2]
    # Six ESTs are two subtrees, which are sent separately: the exchange has twice the bytes.
    assert found.value == pytest.approx(6 * 3_000 + 2 * COMMUNICATION + UPDATE, rel=1e-3)
    assert found.baselines["now"] == pytest.approx(4 * 9_000 + COMMUNICATION + UPDATE, rel=1e-3)
    assert found.baselines["even split"] == pytest.approx(found.baselines["now"])
    assert found.gain_pct == pytest.approx(50, abs=0.3)
    assert found.low_us < found.value < found.high_us
    assert found.plan.parts.assignment.body.ests == found.decision.ests
    assert (found.plan.parts.assignment.applies, found.plan.parts.assignment.changes_bits) == ("live", False)
    assert "18.1 ms instead of 36.1 ms" in draw_ests(found)


def test_equal_ranks_have_no_plan():
    found = advised(est=(5_000, 5_000))
    assert found.plan is None
    assert found.decision.ests == tuple(map(tuple, EVEN))
    assert "No change recommended" in draw_ests(found)


def test_a_gain_below_the_error_has_no_plan():
    found = advised(est=(5_000, 5_100), ests=[[0, 1, 2], [3, 4, 5, 6]])
    assert [len(ests) for ests in found.decision.ests] == [4, 3]
    assert 0 < found.gain_pct < 2 * found.error_pct
    assert found.plan is None


def test_moving_back_predicts_the_original_step():
    """A prediction from either assignment to the other equals the recorded step of that one."""
    far, near = elastic_run([list(range(6)), [6, 7]], (3_000, 9_000)), elastic_run(EVEN, (3_000, 9_000))
    for source, target in ((far, near), (near, far)):
        replayed, found = est_load(source)
        wanted, goal = est_load(target)
        price = replayed.pricer.price_edited(found.moved(goal.assignment))
        # An exchange has more bytes if ranges are less aligned.
        assert price.step_ns.mean() == pytest.approx(wanted.pricer.step_ns, rel=0.005)


def test_a_rank_may_be_left_without_ests():
    found = advised(est=(1_000, 60_000))
    assert [len(ests) for ests in found.decision.ests] == [8, 0]
    assert found.value == pytest.approx(8_000 + COMMUNICATION + UPDATE, rel=0.01)
    assert any("left without ESTs" in warning for warning in found.warnings)


def test_a_plan_round_trips_and_can_be_replayed(tmp_path):
    run = elastic_run(EVEN, (3_000, 9_000))
    replayed, path = Replayed.of(run), tmp_path / "plan.json"
    found = advise_ests(replayed)
    assert found == advise_ests(Replayed.of(run))  # The same evidence, the same plan.
    write_plan(path, found.plan)
    plan = read_plan(path)
    assert plan == found.plan
    check_plan(plan)
    (scenario,) = answer(replayed, [f"assign={path}"]).what_if
    assert scenario.answered
    assert scenario.predicted_us == pytest.approx(found.value)
    assert (scenario.low_us, scenario.high_us) == pytest.approx((found.low_us, found.high_us))


def test_a_modified_plan_is_rejected(tmp_path):
    plan = advised().plan
    section = plan.parts.assignment

    def changed(**fields):
        body = msgspec.structs.replace(section.body, **fields)
        parts = msgspec.structs.replace(plan.parts, assignment=msgspec.structs.replace(section, body=body))
        return msgspec.structs.replace(plan, parts=parts)

    faster = tuple(msgspec.structs.replace(cost, est_us=cost.est_us / 2) for cost in section.body.devices)
    for wrong in ({"devices": faster}, {"compute_us": section.body.compute_us * 1.1}, {"ests_below": 1}):
        with pytest.raises(MismatchError):
            check_plan(changed(**wrong))
    for ests in (((0, 1), (1, 2)), ((0,), (1,)), (tuple(range(8)),)):
        write_plan(tmp_path / "plan.json", changed(ests=ests))
        with pytest.raises(InputError, match="is not a plan"):
            read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "esprof.plan/2"}', "\x00"])
def test_an_invalid_plan_file_is_rejected(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a plan"):
        read_plan(path)


def test_devices_of_an_inventory_are_matched_by_name():
    run = elastic_run(EVEN, (3_000, 9_000), devices=("Tesla V100", "Tesla P100"))
    found = advise_ests(Replayed.of(run), Inventory(devices={"V100": 2, "rank 1": 1})).growth
    assert found.devices == {"V100": 2, "rank 1": 1}
    assert found.ests == {"V100": (3, 4), "rank 1": (1,)}
    assert {one.kind for one in found.proposals} <= {"V100", "rank 1"}
    with pytest.raises(UsageError, match="the cost of an EST on H100 is unknown"):
        advise_ests(Replayed.of(run), Inventory(devices={"H100": 1}))


def test_a_run_without_ests_is_rejected():
    with pytest.raises(EsprofError, match="only an elastic job records"):
        advise_ests(Replayed.of(elastic_run(EVEN, (3_000, 9_000), records_ests=False)))


def test_a_plan_for_another_job_is_declined(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, advised().plan)
    (scenario,) = answer(Replayed.of(elastic_run([[0, 1], [2, 3]], (3_000, 9_000))), [f"assign={path}"]).what_if
    assert not scenario.answered
    assert "the plan has 8 ESTs" in scenario.reason
