"""The folder of stored answers: what it gives back, ignores and removes."""

import os

import pytest

from esprof.reports.answers.store import Kept, Store, user_store

KEPT = Kept("the answer\n", 3, b"{}")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_an_answer_is_given_back(store):
    assert store.get("a") is None
    store.put("a", KEPT)
    assert store.get("a") == KEPT


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_file_of_something_else_is_ignored_and_replaced(store, tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert store.get("a") is None
    store.put("a", KEPT)
    assert store.get("a") == KEPT


def test_a_changed_answer_and_that_of_another_question_are_ignored(store, tmp_path):
    store.put("a", KEPT)
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(whole)
    (tmp_path / "a").write_bytes(whole[:-1])
    assert store.get("a") is None
    assert store.get("b") is None


def test_those_not_asked_for_longest_are_removed(tmp_path):
    store = Store(tmp_path, max_bytes=1_000)
    for age, key in ((3, "old"), (2, "asked"), (1, "young")):
        store.put(key, Kept("x" * 250))
        os.utime(tmp_path / key, ns=(0, 10**18 - age))
    assert store.get("asked") is not None
    store.put("new", Kept("x" * 250))
    assert {file.name for file in tmp_path.iterdir()} == {"asked", "young", "new"}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1_000


def test_an_answer_that_would_push_out_most_others_is_not_stored(tmp_path):
    Store(tmp_path, max_bytes=1_000).put("a", Kept("x" * 501))
    assert not list(tmp_path.iterdir())


def test_nothing_is_stored_where_nothing_can_be(tmp_path):
    (tmp_path / "file").touch()
    Store(tmp_path / "file").put("a", KEPT)
    assert Store(tmp_path / "file").get("a") is None


def test_only_a_private_folder_is_a_store(tmp_path, monkeypatch):
    base = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    assert user_store() is not None
    (base / "esprof" / "answers").chmod(0o777)
    assert user_store() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert user_store() is None
