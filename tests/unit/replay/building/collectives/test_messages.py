"""Messages over gloo: which ends belong together, and when the data passed."""

import numpy as np

from esprof.replay.building.build import build, build_counted
from esprof.replay.dfg import Cls, Edge
from esprof.replay.engine.timeline import replay, strict
from esprof.replay.replayed import Replayed, answer
from esprof.run.run import Run
from tests.cases.graph import Row, op, run_of, step
from tests.cases.messages import matches, message

US = 1_000


def job(*ranks: list[Row], subgroups: tuple[tuple[int, ...], ...] = (), world: int | None = None) -> Run:
    """Two steps of a millisecond, which begin with an operation of 10 µs."""
    begins = [row for at in (0, 1000) for row in (step(1 + at // 1000, at, at + 1000), op("aten::mm", at, 10))]
    return run_of({rank: [*begins, *rows] for rank, rows in enumerate(ranks)}, subgroups=subgroups, world=world)


def communications(run: Run, rank: int) -> list[tuple[int, int]]:
    """Start and duration of each transfer of a rank, µs."""
    dfg = build(run)
    nodes = np.flatnonzero((dfg.collective >= 0) & (dfg.rank == rank) & dfg.of(Cls.COMMUNICATION))
    return [(int(dfg.recorded_ns[node]) // US, int(dfg.dur_ns[node]) // US) for node in nodes]


def test_a_receiver_waits_for_its_sender():
    """Both ends are there at 520 µs. The receiver's wait ends with the data; the sender waits for its own end later."""
    run = job(
        [op("aten::mm", 10, 480), *message("send", 1, 500, 900)],
        [*message("recv", 0, 100, 570), op("aten::mm", 570, 400)],
    )
    built = build_counted(run)
    assert (built.counts.p2p, built.counts.p2p_matched) == (2, 2)
    assert communications(run, 0) == communications(run, 1) == [(520, 50)]
    dfg = built.dfg
    (at,) = np.flatnonzero((dfg.collective >= 0) & (dfg.rank == 1) & dfg.of(Cls.COMMUNICATION))
    joins = [
        dfg.pred_idx[e] for e in range(dfg.pred_ptr[at], dfg.pred_ptr[at + 1]) if dfg.pred_kind[e] == Edge.RENDEZVOUS
    ]
    assert {int(dfg.rank[dfg.pred_idx[e]]) for n in joins for e in range(dfg.pred_ptr[n], dfg.pred_ptr[n + 1])} == {
        0,
        1,
    }
    assert replay(strict(dfg)).step_ns().tolist() == [1000 * US, 1000 * US]


def test_a_message_that_was_there_before_its_rank_waited_took_as_long_as_others_of_its_size():
    """The second receiver computed until 600 µs, and nobody saw the end of the transfer: the first one took 30 µs."""
    sends = message("send", 1, 100, 152) + message("send", 1, 200, 700)
    receives = [*message("recv", 0, 50, 150), op("aten::mm", 290, 310), *message("recv", 0, 220, 602)]
    assert communications(job([*sends, op("aten::mm", 690, 9)], receives), 1) == [(120, 30), (240, 30)]


def test_sends_that_are_waited_for_in_reverse_passed_in_order():
    """torch's runtime for several stages a rank waits at the end of a step, for its latest send first."""
    sends = message("send", 1, 100, 904) + message("send", 1, 200, 902)
    run = job([*sends, op("aten::mm", 240, 660)], message("recv", 0, 50, 150) + message("recv", 0, 160, 250))
    assert communications(run, 0) == communications(run, 1) == [(120, 30), (220, 30)]
    assert replay(build(run)).step_ns().tolist() == [1000 * US, 1000 * US]


def test_messages_of_one_channel_pair_in_order():
    sends = [row for at in (100, 200, 300) for row in message("send", 1, at, at + 30)]
    receives = [row for at in (50, 150, 400) for row in message("recv", 0, at, at + 100)]
    assert matches(job(sends, receives)) == {(100, 50), (200, 150), (300, 400)}


def test_tags_are_told_apart():
    sends = message("send", 1, 100, 140, tag=1) + message("send", 1, 200, 240, tag=2**40)
    receives = message("recv", 0, 300, 340, tag=2**40) + message("recv", 0, 400, 440, tag=1)
    assert matches(job(sends, receives)) == {(100, 400), (200, 300)}


def test_groups_are_told_apart_even_if_they_have_the_same_ranks():
    sends = message("send", 1, 100, 140) + message("send", 1, 200, 240, group="1")
    receives = message("recv", 0, 300, 340, group="1") + message("recv", 0, 400, 440)
    for members in ((0, 1), (1, 0, 2)):
        run = job(sends, receives, [], subgroups=(members,), world=3)
        assert matches(run) == {(100, 400), (200, 300)}


def test_directions_and_steps_are_told_apart():
    first = message("send", 1, 100, 140) + message("recv", 1, 160, 260) + message("send", 1, 1100, 1140)
    second = message("recv", 0, 50, 140) + message("send", 0, 200, 260) + message("recv", 0, 1050, 1140)
    assert matches(job(first, second)) == {(100, 50), (200, 160), (1100, 1050)}


def test_a_batch_is_open_at_once():
    """As `batch_isend_irecv` makes them: all are called, then all are waited for in order."""

    def batch(peer: int) -> list[Row]:
        return message("send", peer, 100, 300) + message("recv", peer, 150, 310)

    run = job(batch(1), batch(0))
    assert matches(run) == {(100, 150)}
    assert build_counted(run).counts.p2p_matched == 4


def test_an_end_outside_the_window_leaves_its_message_unmatched():
    """The receiver calls behind its last step: the sender's end stays on its thread, as long as it waited."""
    run = job(message("send", 1, 100, 140) + message("send", 1, 1900, 1990), message("recv", 0, 50, 140))
    assert matches(run) == {(100, 50)}
    replayed = Replayed.of(run)
    assert replayed.built.unmatched == {0: 1, 1: 0}
    (warning,) = (one for one in replayed.warnings if one.code == "collectives-unmatched")
    assert "1 of 3 collective and point-to-point calls" in warning.message
    assert warning.ranks == (0,)


def test_a_message_too_many_in_a_step_has_no_match():
    sends = [row for at in (100, 200, 300) for row in message("send", 1, at, at + 40)]
    receives = [row for at in (50, 250) for row in message("recv", 0, at, at + 95)]
    coverage = answer(Replayed.of(job(sends, receives)), []).coverage
    assert (coverage.p2p, coverage.p2p_matched) == (5, 4)


def test_messages_without_a_known_peer_stay_unmatched():
    """A receive from any rank, and runs of before peers were recorded."""
    built = build_counted(job(message("send", None, 100, 140), message("recv", None, 50, 140)))
    assert (built.counts.p2p, built.counts.p2p_matched) == (2, 0)


def test_a_message_to_a_rank_that_the_run_lacks_stays_unmatched():
    built = build_counted(job(message("send", 2, 100, 140), [], world=3))
    assert built.unmatched == {0: 1, 1: 0}
