"""The command: which parts run, what is noted, and what is refused."""

import json
import sys

import pytest

from benchmarks.gpu import __main__ as kit

MACHINE = {"hardware": {"device": "a GPU"}, "versions": {"torch": "2.11.0"}}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command where each part says what `said` has for it: its lines, its errors, and how it failed."""
    monkeypatch.setattr(kit, "probe", lambda device: MACHINE)
    said, limits = {}, []

    def of_part(command, limit_s, log, on_line):
        limits.append(limit_s)
        lines, errors, failed = said[command[3]]
        log.write_text(errors)
        for line in lines:
            on_line(line)
        return failed

    def run(parts, **of):
        said.update(of)
        monkeypatch.setattr(kit.processes, "run", of_part)
        monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "out"), "--only", *parts])
        code = kit.main()
        return code, [json.loads(line) for line in (tmp_path / "out" / "figures.jsonl").read_text().splitlines()]

    run.limits = limits
    return run


FIGURE = '{"name": "copy", "value": 1.0, "unit": "GB/s", "spread": null, "context": {}}\n'


def test_a_line_says_part_hardware_and_versions(run, tmp_path, capsys):
    code, (copy, took) = run(["staging"], staging=([FIGURE], "", None))
    assert code == 0
    assert copy == {"part": "staging"} | json.loads(FIGURE) | MACHINE
    assert (took["name"], took["unit"]) == ("part_s", "s")
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[0]) == copy
    assert out.endswith((tmp_path / "out" / "summary.txt").read_text())


def test_a_part_that_fails_is_a_line_and_the_rest_goes_on(run):
    errors = "Traceback\n\nRuntimeError: no graph\n\n"
    code, lines = run(["graphs", "staging"], graphs=([FIGURE], errors, "ended with 1"), staging=([FIGURE], "", None))
    assert code == 1
    assert [(line["part"], line.get("name")) for line in lines] == [
        ("graphs", "copy"), ("graphs", None), ("graphs", "part_s"), ("staging", "copy"), ("staging", "part_s"),
    ]  # fmt: skip
    assert lines[1]["error"] == "ended with 1"
    assert lines[1]["tail"] == ["Traceback", "RuntimeError: no graph"]


def test_what_a_library_prints_is_no_figure(run, capsys):
    _, lines = run(["staging"], staging=(["a library says hello\n", FIGURE], "", None))
    assert [line["name"] for line in lines] == ["copy", "part_s"]
    assert "hello" in capsys.readouterr().err


def test_all_parts_together_keep_to_the_time(run, monkeypatch):
    """Each part takes the 400 s that it may, by a clock of our own."""
    now = [0.0]
    monkeypatch.setattr(kit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(kit, "TOTAL_S", 900)
    monkeypatch.setattr(kit, "LIMITS_S", dict.fromkeys(("windows", "syncs", "graphs", "memory"), 400))
    carry_out = kit.carry_out

    def slow(*arguments):
        carry_out(*arguments)
        now[0] += 400

    monkeypatch.setattr(kit, "carry_out", slow)
    run(["windows", "syncs", "graphs", "memory"], **dict.fromkeys(kit.LIMITS_S, ([], "", None)))
    assert run.limits == [400, 400, 100, 0]


def refused(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        kit.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_run_is_refused(tmp_path, capsys, monkeypatch):
    assert "invalid choice" in refused(capsys, monkeypatch, "--out", tmp_path, "--only", "speed")
    (tmp_path / "figures.jsonl").write_text("")
    assert "give another folder" in refused(capsys, monkeypatch, "--out", tmp_path)


def test_a_device_that_is_not_there_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kit, "probe", lambda device: None)
    assert "--device cpu" in refused(capsys, monkeypatch, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
