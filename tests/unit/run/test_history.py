"""The log of what happened to an elastic job."""

import pytest

from esprof.core.errors import InputError, OutputError
from esprof.run import lines
from esprof.run.history import JobEvent, append, read


def test_what_is_appended_is_read_in_order(tmp_path):
    events = [
        JobEvent(what="started", step=0),
        JobEvent(what="refused", step=3, plan="x", version=2, reason="no\nroom"),
    ]
    for event in events:
        append(tmp_path / "run", event)
    assert read(tmp_path / "run") == tuple(events)
    assert read(tmp_path) == ()


def test_half_a_line_spoils_no_other(tmp_path):
    append(tmp_path, JobEvent(what="started", step=0))
    path = tmp_path / "history.jsonl"
    whole = path.read_bytes()
    for torn in (whole[:-1], whole[: len(whole) // 2], b"\xff\n"):
        path.write_bytes(whole + torn)
        append(tmp_path, JobEvent(what="left", step=9))
        assert [event.what for event in read(tmp_path)][-1] == "left"
        assert read(tmp_path)[0].what == "started"


def test_of_a_long_log_the_end_is_read(tmp_path, monkeypatch):
    for step in range(50):
        append(tmp_path, JobEvent(what="checkpoint", step=step))
    monkeypatch.setattr(lines, "_MOST_BYTES", 400)
    steps = [event.step for event in read(tmp_path)]
    assert 1 <= len(steps) < 50
    assert steps == list(range(50 - len(steps), 50))


def test_what_cannot_be_written_or_read_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        append(tmp_path / "file", JobEvent(what="started", step=0))
    (tmp_path / "history.jsonl").mkdir()
    with pytest.raises(InputError):
        read(tmp_path)
