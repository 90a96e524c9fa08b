"""Which files an answer is about, and the hash of their content."""

import os

import pytest

from esprof.reports.answers import content
from esprof.reports.answers.content import content_hash, stamps_of


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    (folder / "below").mkdir(parents=True)
    (folder / "rank0.json").write_bytes(b"0" * 100)
    (folder / "below" / "rank1.json").write_bytes(b"1" * 100)
    return folder


def hash_of(*sources):
    stamps = stamps_of([str(source) for source in sources])
    return None if stamps is None else content_hash(stamps)


def paths(*sources):
    return [stamp.path for stamp in stamps_of([str(source) for source in sources])]


def test_a_folder_stands_for_all_files_in_it(traces):
    assert paths(traces) == [str(traces / "rank0.json"), str(traces / "below" / "rank1.json")]


def test_a_pattern_stands_for_its_matches(traces):
    assert paths(traces / "*.json") == [str(traces / "rank0.json")]


def test_one_byte_changes_the_hash_though_size_and_time_stay(traces):
    before, file = hash_of(traces), traces / "rank0.json"
    info = file.stat()
    file.write_bytes(b"0" * 99 + b"1")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert hash_of(traces) != before


def test_a_touched_file_has_the_same_hash_and_another_stamp(traces):
    before, stamps = hash_of(traces), stamps_of([str(traces)])
    (traces / "rank0.json").touch()
    assert hash_of(traces) == before
    assert stamps_of([str(traces)]) != stamps


def test_a_new_file_and_a_new_name_change_the_hash(traces):
    hashes = [hash_of(traces)]
    (traces / "rank0.json").rename(traces / "rank2.json")
    hashes.append(hash_of(traces))
    (traces / "empty.json").touch()
    hashes.append(hash_of(traces))
    assert len(set(hashes)) == 3


def test_a_byte_of_a_later_chunk_counts(traces, monkeypatch):
    monkeypatch.setattr(content, "_CHUNK", 16)
    before = hash_of(traces)
    (traces / "rank0.json").write_bytes(b"0" * 60 + b"1" + b"0" * 39)
    assert hash_of(traces) != before


def test_stacks_beside_a_named_file_belong_to_it(traces):
    before = hash_of(traces / "rank0.json")
    (traces / "stacks_2026.txt").write_text("=== Rank 0: x ===")
    assert hash_of(traces / "rank0.json") != before


def test_what_is_missing_or_no_file_has_no_hash(traces):
    assert hash_of(traces / "absent.json") is None
    os.mkfifo(traces / "pipe")  # Reading it would take its content away.
    assert hash_of(traces / "pipe") is None
    assert hash_of(traces) is None


def test_an_incomplete_run_has_no_hash_until_it_is_complete(traces):
    (traces / "live.jsonl").touch()
    assert hash_of(traces) is None
    (traces / "run.json").write_text("{}")
    assert hash_of(traces) is not None


def test_more_than_one_run_can_hold_is_not_hashed(traces, monkeypatch):
    monkeypatch.setattr(content, "MAX_FILES", 1)
    assert hash_of(traces) is None
    monkeypatch.setattr(content, "MAX_FILES", 2)
    assert hash_of(traces) is not None
    monkeypatch.setattr(content, "MAX_BYTES", 199)
    assert hash_of(traces) is None


def test_linked_folders_belong_to_a_folder(traces, tmp_path):
    (tmp_path / "other").mkdir()
    (traces / "link").symlink_to(tmp_path / "other")
    before = hash_of(traces)
    (tmp_path / "other" / "rank2.json").touch()
    assert hash_of(traces) != before


def test_a_circle_of_links_has_no_hash(traces):
    (traces / "circle").symlink_to(traces)
    assert hash_of(traces) is None
