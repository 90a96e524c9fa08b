"""Who keeps whom waiting, told from one look at each rank."""

import networkx as nx
import pytest

from esprof.run.flight.hang import find_hang, wait_for_graph
from esprof.run.flight.log import FlightLog
from tests.cases.flight import BEGAN_NS, SEEN_NS, S, by_rank, call, killed, run_of_flight, snapshot


def test_ranks_that_wait_for_none_stand_not_still():
    assert find_hang(by_rank(snapshot(0, [call(1), call(2)]), snapshot(1, [call(1)]))) is None


def test_the_rank_that_did_not_enter_the_collective_is_at_fault():
    found = find_hang(by_rank(snapshot(0, [call(1), call(2, over=False)]), snapshot(1, [call(1)])))
    assert (found.kind, found.at_fault) == ("absent", (1,))
    waiting = found.waiting[0]
    assert (waiting.group, waiting.number, waiting.what.collective, waiting.what.bytes) == (
        (0, 1),
        2,
        "all_reduce",
        2048,
    )
    assert (waiting.entered, waiting.waiting, waiting.missing) == ((0,), (0,), (1,))
    assert found.waited_ns == SEEN_NS - BEGAN_NS - 1000
    assert str(found) == "rank 1 did not enter all_reduce 2, which rank 0 waits in"


def test_of_several_buckets_under_way_the_first_is_waited_in():
    """DDP enqueues its buckets without waiting; what is behind the first cannot be over either."""
    buckets = [call(1), *(call(number, over=False) for number in (2, 3, 4))]
    found = find_hang(by_rank(snapshot(0, buckets), snapshot(1, [call(1)])))
    assert found.waiting[0].number == 2


def test_nccl_says_that_a_collective_is_over_by_its_state():
    over = [call(1, over=False, state="completed")]
    assert find_hang(by_rank(snapshot(0, over), snapshot(1, over))) is None


def test_a_rank_that_was_looked_at_before_the_others_came_is_not_accused():
    early = snapshot(1, [call(1)], at_ns=BEGAN_NS - 1)
    found = find_hang(by_rank(snapshot(0, [call(1), call(2, over=False)]), early))
    assert (found.kind, found.at_fault) == ("unseen", (1,))


def test_a_rank_of_which_nothing_is_seen_is_named_as_such():
    found = find_hang(by_rank(*(snapshot(rank, [call(1, over=False)], world=3) for rank in (0, 1))))
    assert (found.kind, found.at_fault) == ("unseen", (2,))
    assert str(found) == "ranks 0–1 wait in all_reduce 1, and nothing is seen of rank 2"


def test_a_rank_that_had_ended_is_told_from_one_that_is_not_seen():
    found = find_hang(by_rank(snapshot(0, [call(1, over=False)])), ended=[1])
    assert (found.kind, found.at_fault) == ("gone", (1,))


GROUPS = {"0": (0, 1, 2), "1": (0, 1), "2": (1, 2)}


def test_a_rank_that_waits_in_another_group_is_not_to_blame():
    """Rank 0 waits for rank 1, rank 1 for rank 2, and rank 2 for nobody."""
    found = find_hang(
        by_rank(
            snapshot(0, [call(5, group="1", over=False)], groups={"0": (0, 1, 2), "1": (0, 1)}),
            snapshot(1, [call(4, group="1"), call(7, group="2", over=False)], groups=GROUPS),
            snapshot(2, [call(6, group="2")], groups={"0": (0, 1, 2), "2": (1, 2)}),
        )
    )
    assert (found.kind, found.at_fault) == ("absent", (2,))
    assert (found.waiting[0].group, found.waiting[0].number) == ((1, 2), 7)


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_circle():
    both = {"a": (0, 1), "b": (0, 1)}
    found = find_hang(
        by_rank(
            snapshot(0, [call(3, group="a", over=False)], groups=both),
            snapshot(1, [call(8, group="b", over=False)], groups=both),
        )
    )
    assert (found.kind, found.at_fault) == ("deadlock", (0, 1))
    assert str(found) == (
        "rank 0 waits in all_reduce 3 of group 0-1 ('a') for rank 1 and "
        "rank 1 waits in all_reduce 8 of group 0-1 ('b') for rank 0"
    )


def test_groups_of_one_name_and_other_members_are_other_groups():
    """Subgroups made in one call bear the same number on ranks that are in different ones."""
    found = find_hang(
        by_rank(
            snapshot(0, [call(1, group="1", over=False)], groups={"1": (0, 2)}),
            snapshot(1, [call(9, group="1")], groups={"1": (1, 3)}),
            snapshot(2, [], groups={"1": (0, 2)}),
        )
    )
    assert (found.kind, found.at_fault) == ("absent", (2,))


def test_the_backends_of_a_group_count_for_themselves():
    nccl = call(9).__class__(
        process_group=("0", ""), collective_seq_id=40, profiling_name="nccl:all_reduce", state="completed",
        retired=True, time_created_ns=BEGAN_NS,
    )  # fmt: skip
    found = find_hang(by_rank(snapshot(0, [nccl, call(1, over=False)]), snapshot(1, [nccl])))
    assert (found.kind, found.at_fault, found.waiting[0].number) == ("absent", (1,), 1)


def test_point_to_point_calls_do_not_count():
    sent = call(5, "send", over=False, is_p2p=True)
    assert find_hang(by_rank(snapshot(0, [sent]), snapshot(1, []))) is None


@pytest.mark.parametrize("other", [call(2, "broadcast", over=False), call(2, elements=7, over=False)])
def test_another_collective_or_size_under_one_number_is_a_mismatch(other):
    found = find_hang(
        by_rank(
            *(snapshot(rank, [call(1), call(2, over=False)], world=3) for rank in (0, 2)),
            snapshot(1, [call(1), other], world=3),
        )
    )
    assert (found.kind, found.at_fault) == ("mismatch", (1,))
    assert (found.mismatch.number, found.mismatch.odd, found.mismatch.agreed) == (2, (1,), (0, 2))
    assert not found.mismatch.skipped


def test_sizes_that_may_differ_are_no_mismatch():
    asked = [[call(1, "all_to_all", elements=n, over=False)] for n in (5, 7)]
    found = find_hang(by_rank(*(snapshot(rank, calls) for rank, calls in enumerate(asked))))
    assert found.kind == "stuck"
    assert str(found) == "all_to_all 1 does not end, though all of ranks 0–1 entered it"


def test_a_rank_that_left_one_call_out_shows_by_what_it_entered_since():
    """Its calls paired with the wrong ones for a while, until it waits where the others have passed."""
    usual = [call(1), call(2, "broadcast"), call(3), call(4, "barrier", 0), call(5, over=False)]
    ahead = [call(1), call(2), call(3, "barrier", 0), call(4, over=False)]
    found = find_hang(by_rank(snapshot(0, usual), snapshot(1, ahead)))
    assert (found.kind, found.at_fault, found.mismatch.number) == ("mismatch", (1,), 2)
    assert found.mismatch.skipped
    assert str(found).endswith("where rank 0 entered broadcast of 2.0 KiB, and left that one out")


def test_a_rank_whose_calls_all_look_alike_is_behind_by_one_at_the_end():
    found = find_hang(by_rank(snapshot(0, [call(1), call(2), call(3, over=False)]), snapshot(1, [call(1), call(2)])))
    assert (found.kind, found.at_fault, found.waiting[0].number) == ("absent", (1,), 3)


def test_the_wait_of_most_ranks_is_told_where_there_are_two():
    groups = {"0": (0, 1, 2, 3), "1": (2, 3)}
    found = find_hang(
        by_rank(
            snapshot(2, [call(1, group="1", over=False)], groups=groups),
            snapshot(3, [], groups=groups, at_ns=SEEN_NS + S),
            *(snapshot(rank, [call(1, over=False)], groups={"0": (0, 1, 2, 3)}) for rank in (0, 1)),
        )
    )
    assert (found.at_fault, found.waiting[0].waiting) == ((3,), (0, 1))


def hung(*snapshots, **others):
    return run_of_flight({one.rank: killed(one) for one in snapshots} | {int(r[1:]): log for r, log in others.items()})


def test_the_graph_leads_to_the_rank_that_waits_for_none():
    graph = wait_for_graph(
        hung(
            snapshot(0, [call(5, group="1", over=False)], groups={"0": (0, 1, 2), "1": (0, 1)}),
            snapshot(1, [call(4, group="1"), call(7, group="2", over=False)], groups=GROUPS),
            snapshot(2, [call(6, group="2")], groups={"0": (0, 1, 2), "2": (1, 2)}),
        )
    )
    assert sorted(graph.edges) == [(0, 1), (1, 2)]
    assert [rank for rank, awaited in graph.out_degree if not awaited] == [2]
    assert graph.edges[1, 2] == {
        "kind": "absent",
        "collective": "all_reduce",
        "number": 7,
        "group": "1-2",
        "waited_ns": SEEN_NS - BEGAN_NS - 1000,
    }


def test_the_graph_holds_the_cycle_of_ranks_that_wait_for_each_other():
    both = {"a": (0, 1), "b": (0, 1)}
    graph = wait_for_graph(
        hung(
            snapshot(0, [call(3, group="a", over=False)], groups=both),
            snapshot(1, [call(8, group="b", over=False)], groups=both),
        )
    )
    assert sorted(nx.find_cycle(graph)) == [(0, 1), (1, 0)]


def test_the_graph_tells_ranks_that_ended_from_those_that_are_not_seen():
    waiting = snapshot(0, [call(1, over=False)], world=3)
    graph = wait_for_graph(hung(waiting, r1=FlightLog(ended=True), r2=killed()))
    assert {(a, b): kind for a, b, kind in graph.edges(data="kind")} == {(0, 1): "gone", (0, 2): "unseen"}


def test_a_job_that_ended_in_peace_has_an_empty_graph():
    assert not wait_for_graph(run_of_flight({rank: FlightLog(ended=True) for rank in (0, 1)}))
