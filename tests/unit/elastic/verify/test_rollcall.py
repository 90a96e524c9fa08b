"""What ranks ask of the job's store while they wait for each other."""

from collections import Counter

import pytest
import torch.distributed as dist

from esprof.core.errors import MismatchError
from esprof.elastic.verify import rollcall
from esprof.elastic.verify.board import Board

WORLD = 40


class CountingStore:
    """A store that counts the requests."""

    def __init__(self):
        self._store = dist.HashStore()
        self.requests = Counter()

    def clone(self):
        return self

    def has_extended_api(self):
        return True

    def __getattr__(self, name):
        def call(*arguments):
            self.requests[name] += 1
            return getattr(self._store, name)(*arguments)

        return call


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(rollcall, "_start", lambda roll: None)
    monkeypatch.setattr(rollcall.StoreRollCall, "_set_alarm", lambda roll: None)
    monkeypatch.setattr(rollcall, "_MIN_WAIT_BEFORE_CHECK_S", -1.0)
    monkeypatch.setattr(rollcall, "_numbers", iter([0] * WORLD))
    rollcall._client.cache_clear()
    yield CountingStore()
    rollcall._client.cache_clear()


@pytest.fixture
def ranks(store):
    made = [rollcall.StoreRollCall(store, rank, WORLD) for rank in range(WORLD)]
    yield made
    for one in made:
        one._over.set()


def _steps_of(ranks):
    """The ranks are in step 0 as long as these are held."""
    steps = [rank.call("step 0") for rank in ranks]
    for rank, step in zip(ranks, steps, strict=True):
        step.__enter__()
        rank.beat()
    return steps


def test_a_rank_in_a_long_step_asks_for_one_number_a_beat(store, ranks):
    steps = _steps_of(ranks)
    store.requests.clear()
    for _ in range(10):
        for rank in ranks:
            rank.beat()
    assert store.requests == {"add": 10 * WORLD}
    assert steps


def test_a_rank_that_fails_is_found_by_all_after_two_beats(store, ranks):
    steps = _steps_of(ranks[:-1])
    with pytest.raises(ZeroDivisionError), ranks[-1].call("step 0"):
        1 / 0  # noqa: B018
    store.requests.clear()
    for _ in range(2):
        for rank in ranks[:-1]:
            rank.beat()
    for rank in ranks[:-1]:
        with pytest.raises(MismatchError, match="rank 39 failed in step 0: ZeroDivisionError: division by zero"):
            rank.check()
    assert sum(store.requests.values()) < 12 * WORLD
    assert steps


def test_a_board_without_a_connection_has_nothing():
    class Gone(CountingStore):
        def add(self, key, more):
            raise RuntimeError("Connection reset by peer")

    board = Board(Gone(), "calls")
    board.set("a", "1")
    assert board.get_all(["a", "b"]) == ["1", None]
    assert (board.count("n"), board.is_gone, board.get("a")) == (None, True, None)
