"""The GPU kit without a GPU: the same code in tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.parts import LIMITS_S

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.gpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_parts_run_on_a_cpu(tmp_path):
    out = tmp_path / "out"
    done = run("--out", out, "--device", "cpu", "--only", "staging", "syncs")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]
    assert done.stdout.splitlines()[: len(lines)] == (out / "figures.jsonl").read_text().splitlines()
    assert {line["part"] for line in lines} == {"staging", "syncs"}
    for line in lines:
        assert line["hardware"]["device"] == "cpu"
        assert line["versions"]["torch"]
    by_name = {line["name"]: line for line in lines if line["part"] == "syncs"}
    assert by_name["sync_records"]["value"] == 0  # Nothing waits for a CPU.
    assert by_name["self_replay_error"]["value"] < 1
    assert (out / "runs" / "streams" / "run.json").exists()
    assert done.stdout.endswith((out / "summary.txt").read_text())


def test_a_part_for_every_limit():
    folder = ROOT / "benchmarks" / "gpu" / "parts"
    assert {file.stem for file in folder.glob("*.py")} - {"__init__"} == set(LIMITS_S)
