"""Peers that are replayed while a rank runs; the clock is a number."""

import pytest

from esprof.recorder.ghost.peers import Call, ReplayedPeers
from tests.cases.ghosts import LARGE, MS, ONE_STEP, SMALL, collective, schedule


def peers_of(*steps, joined_at=(0, 20)):
    """Peers that have joined in, by a step with these launches, ms."""
    peers = ReplayedPeers(schedule(*steps or (ONE_STEP,)))
    for call, at in zip((SMALL, LARGE), joined_at, strict=True):
        assert peers.launch(call, at * MS) == at * MS
    return peers


def ends_ms(peers, *launches):
    return [peers.launch(call, at * MS) / MS for call, at in launches]


def test_a_rank_that_is_early_waits_for_its_peers():
    peers = peers_of()
    # The peer comes at 30 and at 50; the transfers take 2 and 4 ms.
    assert ends_ms(peers, (SMALL, 22), (LARGE, 33)) == [32, 54]
    assert peers.waited_ns == {1: (8 + 17) * MS}


def test_peers_wait_for_a_rank_that_is_late():
    peers = peers_of()
    assert ends_ms(peers, (SMALL, 100), (LARGE, 101)) == [102, 124]
    assert ends_ms(peers, (SMALL, 125), (LARGE, 300)) == [132, 304]
    assert peers.step_ns == [104 * MS, 180 * MS]


def test_a_link_carries_one_collective_at_a_time():
    peers = peers_of([collective(SMALL, 50, (1, 10)), collective(LARGE, 4, (1, 5))])
    assert ends_ms(peers, (SMALL, 22), (LARGE, 23)) == [80, 84]


def test_recorded_steps_follow_each_other_in_a_loop():
    peers = peers_of(
        [collective(SMALL, 0, (1, 10)), collective(LARGE, 0, (1, 10))],
        [collective(SMALL, 0, (1, 10)), collective(LARGE, 0, (1, 70))],
    )
    assert ends_ms(peers, *[(SMALL, 20), (LARGE, 20)] * 3) == [30, 40, 50, 120, 130, 140]


def test_a_sender_does_not_wait_and_nobody_waits_for_a_receiver():
    sends = collective(SMALL, 1, (1, 10), waits=False)
    receives = collective(LARGE, 1, (1, 10), awaited=False)
    peers = peers_of([sends, receives])
    # The message is on its way at 22; the peer takes it at 30, and sends its own at 40.
    assert ends_ms(peers, (SMALL, 22), (LARGE, 100)) == [23, 101]
    assert ends_ms(peers, (SMALL, 101), (LARGE, 102)) == [102, 112]


def test_what_is_not_in_the_schedule_ends_at_once_and_is_counted():
    peers = peers_of()
    stranger = Call("broadcast", (0, 1), 8)
    assert ends_ms(peers, (SMALL, 22), (stranger, 25), (LARGE, 33)) == [32, 25, 54]
    assert peers.strangers == {stranger: 1}
    assert str(stranger) == "broadcast of 8 bytes in a group of 2"


def test_peers_join_in_after_a_whole_step_in_order_only():
    peers = ReplayedPeers(schedule(ONE_STEP))
    assert ends_ms(peers, (SMALL, 0), (SMALL, 1), (LARGE, 2)) == [0, 1, 2]
    assert ends_ms(peers, (SMALL, 3)) == [14]
    assert (peers.before, peers.strangers) == (3, {})


def test_peers_go_on_where_the_rank_has_left_a_collective_out():
    peers = peers_of()
    assert ends_ms(peers, (SMALL, 22), (SMALL, 40), (LARGE, 60), (SMALL, 65)) == [32, 40, 64, 72]


@pytest.mark.parametrize("size", [1, 10**9])
def test_any_size_fits_where_none_was_recorded(size):
    unknown = collective(Call("all_to_all", (0, 1), -1), 0, (1, 10))
    peers = ReplayedPeers(schedule([unknown]))
    assert ends_ms(peers, *[(Call("all_to_all", (0, 1), size), 0)] * 2) == [0, 10]
    assert ends_ms(peers, (Call("all_to_all", (0,), size), 0)) == [0]
