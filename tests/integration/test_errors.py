"""Errors of the installed command on real files, resource limits and permissions."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from esprof import load
from esprof.core.errors import OutputError
from esprof.run.files import table_path
from tests.cases import command_line
from tests.cases import kineto as case
from tests.cases.kineto import EPOCH_US, document, row
from tests.cases.run_directory import write_run

pytestmark = pytest.mark.integration

ESPROF = Path(sys.executable).parent / "esprof"
HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m\n::error file=x::forged\u202e[bold]"
MIB = 1 << 20


def esprof(*arguments, through=(), cwd=None, **options):
    """Run the command, in a process of its own where another one, `through`, or `options` change what it may do."""
    if not through and not options:
        return command_line.esprof(*arguments, cwd=cwd)
    command = [*through, ESPROF, *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 200, "check": False} | options)


def refused(result, *says, code=1):
    """The message of a command that was to fail: on stderr alone, in words, with a reason and a remedy."""
    assert result.returncode == code, (result.stdout, result.stderr)
    assert not result.stdout
    assert "Traceback" not in result.stderr
    first, *rest = result.stderr.splitlines()
    assert first.startswith("esprof: ")
    assert rest
    assert all(line.startswith("  ") and line.strip() for line in rest)
    for text in says:
        assert str(text) in result.stderr
    return first


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Traces of a sound job of two ranks."""
    return case.write_job(tmp_path_factory.mktemp("good"))


# Files that are no trace


def truncated(path):
    raw = gzip.compress(json.dumps(document(*[row("aten::mm", 10 * i) for i in range(1000)])).encode())
    return case.write(path / "rank0.json.gz.json", raw[: len(raw) // 2])


def corrupted(path):
    raw = bytearray(gzip.compress(json.dumps(document(*[row(f"op {i}", 10 * i) for i in range(1000)])).encode()))
    raw[200:300] = bytes(100)
    return case.write(path / "rank0.json", bytes(raw))


def cut_off_json(path):
    return case.write(path / "rank0.json", json.dumps(document(row("aten::mm", 0))).encode()[:-20])


def binary(path):
    return case.write(path / "rank0.json", bytes(range(256)) * 1000)


def empty_file(path):
    return case.write(path / "rank0.json", b"")


def another_json(path):
    return case.write(path / "config.json", {"learning_rate": 0.1})


def empty_folder(path):
    return path


def nothing(path):
    return path / "absent"


def two_runs(path):
    for name in ("a", "b"):
        case.write(path / f"{name}.json", case.job(0))
    return path


def two_worlds(path):
    case.write(path / "a.json", case.job(0, world=2))
    case.write(path / "b.json", case.job(1, world=4))
    return path


def all_broken(path):
    truncated(path)
    return path


def foreign_run(path):
    case.write(path / "run.json", {"entity": "somebody", "project": "else"})
    return path


def future_run(path):
    case.write(path / "run.json", {"schema": "esprof.run/9"})
    return path


def gpu_alone(path):
    return case.write(path / "rank0.json", document(case.kernel(0, 1), case.kernel(50, 2)))


FAULTS = [
    (truncated, "truncated gzip"),
    (corrupted, "broken gzip"),
    (cut_off_json, "not valid JSON"),
    (binary, "is a binary file"),
    (empty_file, "not valid JSON"),
    (another_json, "no Kineto trace"),
    (empty_folder, "contains no run.json, no trace"),
    (nothing, "does not exist"),
    (two_runs, "not of one run: both a.json and b.json are of rank 0"),
    (two_worlds, "not of one run: their world sizes are 2, 4"),
    (all_broken, "truncated gzip"),
    (foreign_run, "is not a valid run.json"),
    (future_run, "'esprof.run/9' is not 'esprof.run/1'"),
]


@pytest.mark.parametrize(("make", "reason"), FAULTS)
def test_unreadable_inputs_are_errors(tmp_path, make, reason):
    path = make(tmp_path)
    assert str(path) in refused(esprof("replay", path), reason)


@pytest.mark.parametrize("verb", ["diagnose", "report", "check"])
def test_every_command_reports_it_equally(tmp_path, verb):
    baseline = ["--baseline", tmp_path / "a.json"] if verb == "check" else []
    output = ["-o", tmp_path / "report.html"] if verb == "report" else []
    result = esprof(verb, cut_off_json(tmp_path / "run"), *baseline, *output)
    refused(result, "rank0.json" if verb != "check" else "a.json")
    assert not (tmp_path / "report.html").exists()


def test_a_trace_of_the_gpu_alone_has_no_step_to_replay(tmp_path):
    refused(esprof("replay", gpu_alone(tmp_path)), "no CPU operation")


# Memory


def peak_memory(*arguments, limit):
    """(Result, largest resident set in bytes) of the command under a memory limit."""
    environment = os.environ | {"ESPROF_MEMORY_LIMIT": str(limit)}
    with subprocess.Popen(
        [ESPROF, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors), usage.ru_maxrss * 1024


def one_stream(path):
    """600 MiB of a valid JSON list's beginning, in half a megabyte."""
    squeeze = zlib.compressobj(1, wbits=31)
    with path.open("wb") as file:
        file.write(squeeze.compress(b"["))
        for _ in range(600):
            file.write(squeeze.compress(b" " * MIB))
        file.write(squeeze.compress(b"]") + squeeze.flush())


def many_members(path):
    """A gigabyte in 64 members that are each within the limit."""
    path.write_bytes(gzip.compress(b" " * (16 * MIB), 1) * 64)


def small_objects(path):
    """Within the limit as text, many times as large as a table."""
    path.write_bytes(gzip.compress(b"[" + b'{"ph":"X"},' * (4 * MIB) + b"{}]", 1))


@pytest.mark.parametrize("bomb", [one_stream, many_members, small_objects])
def test_a_gzip_bomb_ends_within_the_memory_limit(tmp_path, bomb):
    limit = 64 * MIB
    bomb(tmp_path / "rank0.json.gz")
    assert (tmp_path / "rank0.json.gz").stat().st_size < limit / 10
    _, idle = peak_memory("replay", tmp_path / "absent", limit=limit)
    result, peak = peak_memory("replay", tmp_path / "rank0.json.gz", limit=limit)
    refused(result, "larger than the memory limit of 64.0 MiB", "ESPROF_MEMORY_LIMIT")
    assert peak - idle < 3 * limit  # The text, and the parts from which it was joined.


# What the system refuses


def without_privileges():
    """A command that takes from root the right to pass over permissions; empty where nobody is root."""
    if os.geteuid() != 0:
        return ()
    through = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    if shutil.which("setpriv") is None or subprocess.run([*through, "true"], capture_output=True).returncode:
        pytest.skip("permissions do not bind root, and setpriv cannot drop that right here")
    return through


def test_no_permission_to_read(tmp_path, good):
    through = without_privileges()
    shutil.copytree(good, tmp_path / "job")
    file = tmp_path / "job" / "rank1.json.gz"
    file.chmod(0)
    assert str(file) in refused(esprof("replay", file, through=through), "cannot be read: Permission denied")
    rest = esprof("replay", tmp_path / "job", "--json", through=through)
    assert rest.returncode == 0, rest.stderr
    assert [w["code"] for w in json.loads(rest.stdout)["warnings"]][:2] == ["trace-unreadable", "rank-missing"]
    (tmp_path / "job").chmod(0)
    try:
        for path in (tmp_path / "job", file, tmp_path / "job" / "*.json"):
            refused(esprof("replay", path, through=through), "cannot be read: Permission denied")
    finally:
        (tmp_path / "job").chmod(0o700)


def test_no_permission_to_write(tmp_path, good):
    through = without_privileges()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    path = closed / "answer.json"
    assert str(path) in refused(esprof("replay", good, "-o", path, through=through), "cannot be written: Permission")
    assert list(closed.iterdir()) == []


@pytest.fixture
def closed(tmp_path):
    """A folder of names under which nothing can be written, and why."""
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    mounted = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path / "mine"]
    is_mounted = not subprocess.run(mounted, capture_output=True).returncode
    yield {
        tmp_path / "closed" / "deep" / "out": "Permission denied",
        tmp_path / "file" / "out": "Not a directory",
        tmp_path / ("x" * 300): "File name too long",
    } | ({tmp_path / "mine" / "out": "Read-only file system"} if is_mounted else {})
    if is_mounted:
        subprocess.run(["umount", tmp_path / "mine"], check=True)


@pytest.mark.parametrize("verb", ["report", "merge", "record", "record --json"])
def test_an_unwritable_output_is_refused_before_any_work(tmp_path, good, closed, verb):
    through = without_privileges()
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "run.json").touch()
    for path, reason in closed.items():
        arguments = {
            "report": ("report", good, "-o", path),
            "merge": ("merge", tmp_path / "part", "-o", path),
            "record": ("record", "-o", path, "--", "touch", tmp_path / "started"),
            "record --json": ("record", "-o", tmp_path / "run", "--json", path, "--", "touch", tmp_path / "started"),
        }[verb]
        result = esprof(*arguments, through=through)
        assert str(path) in refused(result, f"cannot be written: {reason}")
        assert "recording" not in result.stderr
    assert not {"started", "run"} & {file.name for file in tmp_path.iterdir()}


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_disk_full_while_a_report_is_written(full_disk, good):
    report = full_disk / "report.html"
    result = esprof("report", good, "-o", report)
    assert str(report) in refused(result, "cannot be written: No space left on device")
    assert list(full_disk.iterdir()) == []


def test_disk_full_while_a_run_is_written(full_disk, good):
    """No table is half there, and without its `run.json` it is no Run."""
    run = load(good)
    many = {("events", rank): run.events(rank).where(_repeated(run, rank)) for rank in run.ranks}
    with pytest.raises(OutputError, match="No space left on device"):
        write_run(full_disk / "run", run.meta, many)
    assert [file for file in full_disk.rglob("*") if file.is_file()] == []
    refused(esprof("replay", full_disk / "run"), "contains no run.json, no trace")


def _repeated(run, rank):
    """Rows of a table too large for the disk: shuffled, so that it does not pack."""
    import numpy as np

    return np.random.default_rng(0).integers(0, len(run.events(rank)), 200_000)


def test_a_file_may_not_grow_past_the_users_limit(tmp_path, good):
    result = esprof("report", good, "-o", tmp_path / "report.html", through=("prlimit", "--fsize=65536"))
    refused(result, tmp_path / "report.html", "cannot be written: File too large")
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_full(good):
    with open("/dev/full", "w") as full:
        result = esprof("replay", good, "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "No space left on device" in result.stderr


def test_a_closed_pipe_is_no_error(good):
    pipeline = f"'{ESPROF}' replay '{good}' --json | head -c 10"
    result = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


# Less than a whole run


def test_a_run_with_a_damaged_rank_is_analysed_with_a_warning(tmp_path, good):
    run = load(good)
    write_run(tmp_path, run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    table_path(tmp_path, "events", 1).write_bytes(b"no parquet")
    replayed = esprof("replay", tmp_path, "--json")
    assert replayed.returncode == 0, replayed.stderr
    answer = json.loads(replayed.stdout)
    assert answer["coverage"]["missing_ranks"] == [1]
    assert answer["warnings"][0]["code"] == "rank-unreadable"
    diagnosed = esprof("diagnose", tmp_path)
    assert "rank 1: its events cannot be read" in " ".join(diagnosed.stdout.split())
    assert "ESP903" in diagnosed.stdout


def test_a_trace_without_steps_is_one_window_with_a_warning(tmp_path):
    rows = [one for one in case.job(0, world=1, steps=2)["traceEvents"] if "ProfilerStep" not in one["name"]]
    result = esprof("replay", case.write(tmp_path / "rank0.json", rows), "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["unit"] == "window"
    assert [step["step"] for step in answer["steps"]] == [0]
    assert "no-steps" in [warning["code"] for warning in answer["warnings"]]


# Usage


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replya", "RUN"], "No verb 'replya'"),
        (["replay"], "Missing argument"),
        (["replay", "RUN", "--frobnicate"], "No such option"),
        (["replay", "RUN", "--what-if", "warp=9x"], "warp"),
        (["replay", "RUN", "--what-if", "gpu"], "gpu=2x"),
    ],
)
def test_a_typo_is_exit_code_2_before_the_run_is_read(tmp_path, arguments, says):
    result = esprof(*arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert says in result.stderr


def test_an_invalid_memory_limit_is_a_usage_error(good):
    result = esprof("replay", good, env=os.environ | {"ESPROF_MEMORY_LIMIT": "2G"})
    refused(result, "ESPROF_MEMORY_LIMIT is '2G'", code=2)


# Hostile names


def is_tame(text):
    """Nothing that would steer a terminal, and no line that a CI runner would take for a command."""
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.strip().startswith("::")]


def test_a_hostile_path_in_a_message(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "|")
    folder.mkdir()
    result = esprof("replay", folder)
    refused(result, "<script>", "\\x1b[31mred", "\\x0a::error")
    is_tame(result.stderr)


def test_hostile_names_within_a_run(tmp_path):
    case.write_job(tmp_path / "job", suffix=HOSTILE, world=2)
    case.write(tmp_path / "job" / f"{HOSTILE.replace('/', '|')}.json", b"{")
    for verb in ("replay", "diagnose"):
        for options in ([], ["--json"]):
            result = esprof(verb, tmp_path / "job", *options)
            assert result.returncode == 0, result.stderr
            is_tame(result.stdout)
            is_tame(result.stderr)


def test_hostile_values_in_a_run_json(tmp_path, good):
    meta = msgspec.structs.replace(load(good).meta, schema=HOSTILE)
    write_run(tmp_path, meta, {})
    result = esprof("replay", tmp_path)
    refused(result, "is not 'esprof.run/1'")
    is_tame(result.stderr)


def test_hostile_numbers_within_a_trace(tmp_path):
    rows = case.job(0, world=1)["traceEvents"]
    odd = [
        row("aten::mm", 20) | {"ts": 1e300},
        row("aten::mm", 30) | {"dur": -1},
        row("aten::mm", 40) | {"tid": {"a": 1}},
        case.kernel(50, 2**70, stream=[1]),
        case.step(10**12, 60, 5),
        {"ph": "X", "cat": "cpu_op", "ts": EPOCH_US, "dur": 1},
    ]
    result = esprof("replay", case.write(tmp_path / "rank0.json", rows + odd), "--json")
    assert result.returncode == 0, result.stderr
    codes = {warning["code"] for warning in json.loads(result.stdout)["warnings"]}
    assert {"values-left-out", "events-left-out"} <= codes
