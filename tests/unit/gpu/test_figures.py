"""Figures as JSON lines and as a table."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.parts import LIMITS_S
from benchmarks.gpu.parts.overhead import OnDevice, Shown
from benchmarks.gpu.sizes import LARGE, SHARED, SMALL, size
from benchmarks.gpu.summary import summary

ROOT = Path(__file__).parents[3]


@pytest.fixture
def kit(tmp_path):
    return Kit("cpu", tmp_path, limit_s=10)


def printed(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_figure_is_the_median_with_its_spread(kit, capsys):
    kit.show("copy", [3.0, 1.0, 2.00004], "GB/s", mb=4)
    (line,) = printed(capsys)
    spread = {"low": 1.0, "high": 3.0, "of": 3}
    assert line == {"name": "copy", "value": 2.0, "unit": "GB/s", "spread": spread, "context": {"mb": 4}}


def test_what_was_measured_once_has_no_spread(kit, capsys):
    kit.show("streams", 2, "streams")
    kit.show("step_ms", [12.345678], "ms")
    streams, step = printed(capsys)
    assert streams["spread"] is None
    assert step["spread"] is None
    assert step["value"] == 12.35


def test_figures_of_overhead_keep_their_interval(kit, capsys):
    context = {"job": "small", "low": -0.2, "high": 0.4, "iqr": 1.5, "pairs": 30}
    Shown(kit).print("recorder_outside_pct", 0.1, "%", context)
    Shown(kit).print("recorder_border_us", 9.0, "us", {"job": "small"})
    outside, border = printed(capsys)
    assert outside["spread"] == {"low": -0.2, "high": 0.4, "iqr": 1.5}
    assert outside["context"] == {"job": "small", "pairs": 30}
    assert border["spread"] is None


def test_the_job_of_overhead_is_the_kits(tmp_path):
    job = OnDevice("small", "train", "--device cpu --batch 2", steps=40)
    assert job.argv(tmp_path, 20) == ["benchmarks.gpu.jobs.train", "--steps", "20", "--device", "cpu", "--batch", "2"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("kind", [LARGE, SMALL, SHARED])
def test_every_kind_of_job_has_a_size_on_every_device(device, kind, tmp_path):
    arguments = size(Kit(device, tmp_path, 10), kind)
    assert arguments[::2] == ["--hidden", "--layers", "--batch", "--context"]
    assert int(arguments[1]) % 4 == 0  # Heads.
    assert all(int(number) > 0 for number in arguments[1::2])


LINES = [
    {"part": "codecs", "name": "encode", "value": 812.5, "unit": "GB/s", "spread": {"low": 800.0, "high": 820.0, "of": 20},
     "context": {"codec": "fp16", "mb": 4, "wire_mb": 2}},
    {"part": "graphs", "error": "ended with 1", "tail": ["Traceback", "RuntimeError: no graph"]},
    {"part": "codecs", "name": "part_s", "value": 3.0, "unit": "s", "spread": None, "context": {}},
    {"part": "ranks", "error": "was not done within 110 s", "tail": []},
]  # fmt: skip


def test_the_table_has_all_figures_by_part():
    text = [re.sub(" +", " ", line).strip() for line in summary(LINES).splitlines() if line]
    assert text == [
        "codecs",
        "encode 812.5 GB/s (800 to 820) [codec fp16, mb 4]",
        "part_s 3 s",
        "graphs",
        "FAILED: ended with 1: RuntimeError: no graph",
        "ranks",
        "FAILED: was not done within 110 s: nothing was said",
    ]


def test_the_documentation_names_every_part_with_its_limit():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", (ROOT / "docs" / "how-to" / "gpu.md").read_text(), re.MULTILINE)
    assert {part: int(limit_s) for part, limit_s in rows} == LIMITS_S
