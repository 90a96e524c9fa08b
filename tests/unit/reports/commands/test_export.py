"""`esprof export`."""

import gzip
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.sharing.reductions import REDUCTIONS
from esprof.core.errors import OutputError, UsageError
from esprof.reports.commands import export
from esprof.reports.export.event_file import EVENT_FILE
from tests.cases import perfetto
from tests.cases.exported import cpu_run
from tests.cases.run_directory import names_in, write_run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    run, path = cpu_run(), tmp_path_factory.mktemp("runs") / "two-ranks"
    tables = {(name, rank): getattr(run, name)(rank) for rank in run.ranks for name in ("events", "memory")}
    write_run(path, run.meta, tables)
    return str(path)


def invoke(*arguments):
    return CliRunner().invoke(export.command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv", "parquet", "jsonl"])
def test_a_file_is_written_and_reported_once(saved, form, tmp_path):
    file = tmp_path / "deep" / "export"
    said = invoke(saved, "--format", form, "-o", file, "--json")
    assert said.stderr == f"Wrote the export to {file}\n"
    answer = json.loads(said.stdout)
    assert (answer["schema"], answer["what"], answer["bytes"]) == ("esprof.written/1", "export", file.stat().st_size)
    assert list(file.parent.iterdir()) == [file]


def test_an_export_needs_the_name_of_a_file(saved):
    said = invoke(saved, "--format", "perfetto")
    assert (said.exit_code, said.stdout) == (2, "")
    assert "Missing option '-o' / '--output'" in said.stderr


def test_formats_hold_what_was_asked_for(saved, tmp_path):
    trace, table = tmp_path / "a.pftrace", tmp_path / "a.parquet"
    invoke(saved, "--format", "perfetto", "-o", trace, "--what-if", "cpu=2x", "--step", 2)
    found = perfetto.read(trace.read_bytes())
    assert [one.name for one in found.on("job", "steps cpu=2x")] == ["step 2"]
    invoke(saved, "--format", "parquet", "-o", table, "--step", 2)
    assert set(pq.read_table(table)["step"].to_pylist()) == {2}


def test_text_goes_to_stdout_and_a_name_in_gz_is_compressed(saved, tmp_path):
    said = invoke(saved, "--format", "chrome", "-o", "-")
    assert said.stderr == ""
    assert json.loads(said.stdout)["traceEvents"]
    invoke(saved, "--format", "chrome", "-o", tmp_path / "a.json.gz")
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()).decode() == said.stdout
    assert invoke(saved, "--format", "csv", "-o", "-").stdout.startswith('"timeline","rank","lane"')


def test_what_cannot_go_to_stdout_is_refused_before_the_run_is_read(tmp_path, monkeypatch):
    nothing = tmp_path / "there is no run here"
    for form in ("perfetto", "parquet", "tensorboard"):
        with pytest.raises(UsageError, match="is no text"):
            invoke(nothing, "--format", form, "-o", "-")
    with pytest.raises(UsageError, match="both write to stdout"):
        invoke(nothing, "--format", "csv", "-o", "-", "--json")
    with pytest.raises(UsageError, match="gqu"):
        invoke(nothing, "--format", "csv", "-o", "-", "--what-if", "gqu=2x")


def test_series_of_steps_have_no_timeline(tmp_path):
    for options in (("--what-if", "cpu=2x"), ("--step", 2)):
        with pytest.raises(UsageError, match="no timelines"):
            invoke(tmp_path, "--format", "jsonl", "-o", "-", *options)


def test_an_event_file_lies_in_the_named_folder_beside_what_is_there(saved, tmp_path):
    pytest.importorskip("tensorboard.summary", reason="tensorboard is not installed")
    mine = tmp_path / "events.out.tfevents.1700000000.host"
    mine.write_text("mine")
    assert mine.name > EVENT_FILE
    said = invoke(saved, "--format", "tensorboard", "-o", tmp_path)
    assert said.stderr == f"Wrote the export to {tmp_path / EVENT_FILE}\n"
    with pytest.raises(OutputError, match="already exists"):
        invoke(saved, "--format", "tensorboard", "-o", tmp_path)
    invoke(saved, "--format", "tensorboard", "-o", tmp_path, "--force", "--redact")
    assert b"Rank 1" not in (tmp_path / EVENT_FILE).read_bytes()
    assert mine.read_text() == "mine"


def test_a_folder_is_no_file(saved, tmp_path):
    with pytest.raises(OutputError, match="already exists"):
        invoke(saved, "--format", "csv", "-o", tmp_path)
    with pytest.raises(OutputError, match="directory"):
        invoke(saved, "--format", "csv", "-o", tmp_path, "--force")


def test_a_file_is_overwritten_with_force_only(saved, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        invoke(saved, "--format", "csv", "-o", file)
    assert file.read_text() == "mine"
    invoke(saved, "--format", "csv", "-o", file, "--force")
    assert file.read_text() != "mine"


def test_a_half_written_file_does_not_stay(saved, tmp_path, monkeypatch):
    def fail(exported, file):
        file.write(b"half")
        raise RuntimeError("broken")

    monkeypatch.setitem(export._FORMATS, "chrome", fail)
    with pytest.raises(RuntimeError, match="broken"):
        invoke(saved, "--format", "chrome", "-o", tmp_path / "a.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_was_not_recorded_is_refused_with_those_that_were(saved, tmp_path):
    with pytest.raises(UsageError, match="step 9 is in no window"):
        invoke(saved, "--format", "csv", "-o", tmp_path / "a.csv", "--step", 9)


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv", "parquet"])
def test_a_redacted_file_has_no_name_of_the_job(saved, form, tmp_path):
    plain, redacted = tmp_path / "plain", tmp_path / "redacted"
    invoke(saved, "--format", form, "-o", plain)
    invoke(saved, "--format", form, "-o", redacted, "--redact")
    names = [b"secret", b"aten", b"autograd", b"Optimizer", b"gloo:", saved.encode(), sys.executable.encode()]
    assert b"secret" in plain.read_bytes()
    assert not [name for name in names if name in redacted.read_bytes()]


def test_a_reproducer_is_a_folder_and_needs_a_rank(saved, tmp_path):
    said = invoke(saved, "--format", "ghost", "--rank", 1, "-o", tmp_path / "ghost", "--json")
    assert json.loads(said.stdout)["what"] == "export"
    assert json.loads((tmp_path / "ghost" / "schedule.json").read_text())["rank"] == 1
    for words in (["--format", "ghost"], ["--format", "csv", "--rank", 0]):
        with pytest.raises(UsageError, match="belong together"):
            invoke(saved, *words, "-o", tmp_path / "other")
    with pytest.raises(UsageError, match="no timelines"):
        invoke(saved, "--format", "ghost", "--rank", 0, "--step", 2, "-o", tmp_path / "other")


def test_a_run_is_written_that_esprof_opens_like_any_other(saved, tmp_path):
    out = tmp_path / "shared"
    said = invoke(saved, "--format", "run", "-o", out, "--json")
    assert said.stderr == f"Wrote the run to {out}\n"
    answer = json.loads(said.stdout)
    assert (answer["what"], answer["ranks"], answer["shared"]["left_out"]) == ("run", [0, 1], [])
    assert answer["bytes"] == sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    assert diagnose(load(out)).verdict == diagnose(cpu_run()).verdict
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_a_small_run_without_names_has_the_same_finding(saved, tmp_path, monkeypatch):
    # The others are tried one by one elsewhere.
    few = [one for one in REDUCTIONS if one.what in ("parts of the run", "names of events", "large numbers of calls")]
    monkeypatch.setattr("esprof.analyzers.sharing.shrink.REDUCTIONS", few)
    out = tmp_path / "shared"
    said = invoke(saved, "--format", "run", "--shrink", "--redact", "-o", out)
    assert "Left out parts of the run: memory\n" in said.stderr
    assert "Preserved ESP201, 10.0 ms of a step of 50.0 ms; now 10.0 ms of 50.0 ms\n" in said.stderr
    first, found = diagnose(cpu_run()).findings[0], diagnose(load(out)).findings[0]
    assert (found.id, found.ranks) == (first.id, first.ranks)
    assert found.saving_us == pytest.approx(first.saving_us, rel=0.01)
    assert names_in(Path(saved), ["secret", "secret-host"]) == ["secret", "secret-host"]
    assert not names_in(out, ["secret", Path(saved).name])


def test_a_run_of_which_all_is_needed_says_so(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("esprof.analyzers.sharing.shrink.REDUCTIONS", [])
    said = invoke(saved, "--format", "run", "--shrink", "-o", tmp_path / "shared")
    assert said.stderr.startswith("Nothing can be left out\nPreserved ESP201")


def test_a_folder_is_replaced_with_force_and_only_if_it_is_a_run(saved, tmp_path):
    out = tmp_path / "folder"
    out.mkdir()
    with pytest.raises(OutputError, match="already exists"):
        invoke(saved, "--format", "run", "-o", out)
    with pytest.raises(OutputError, match="is not a Run"):
        invoke(saved, "--format", "run", "-o", out, "-f")
    with pytest.raises(UsageError, match="overlaps with the input"):
        invoke(saved, "--format", "run", "-o", saved, "-f")
    out.rmdir()
    for _ in range(2):
        assert invoke(saved, "--format", "run", "-o", out, "-f").exit_code == 0


def test_a_run_with_another_verdict_is_not_written(saved, tmp_path, monkeypatch):
    def broken(contents, preserves, tell):
        return contents.with_tables("events", lambda rank, rows: rows.where(rows.ints("step") > 3)), ()

    monkeypatch.setattr("esprof.analyzers.sharing.shared.shrunk", broken)
    with pytest.raises(OutputError, match="is not written, as its diagnosis would be"):
        invoke(saved, "--format", "run", "--shrink", "-o", tmp_path / "shared")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "run", "--what-if", "cpu=2x"], "has no timelines"),
        (["--format", "run", "--step", "2"], "has no timelines"),
        (["--format", "run", "-o", "-"], "a run is a folder"),
        (["--format", "csv", "--shrink"], "only a run can be made smaller"),
    ],
)
def test_options_that_do_not_fit_a_run_are_refused(options, reason, tmp_path):
    with pytest.raises(UsageError, match=reason):
        invoke("there is no run here", "-o", tmp_path / "x", *options)
