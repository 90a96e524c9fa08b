"""The catalogue of jobs under the stock launcher: each learns, by the same arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.marks import soak
from tests.cases.record import environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_other_beds")]

ROOT = Path(__file__).parents[2]


def train(name, *arguments):
    """What rank 0 of two prints of a job that reads samples from files."""
    return launch(2, name, "--samples", "64", *arguments)


def launch(ranks, name, *arguments):
    """What rank 0 prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, "-m", f"benchmarks.jobs.{name}", "--steps", "24", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        soak("gpt", ["--hidden", 64, "--layers", 2]),
        ("mlp", ["--hidden", 64, "--bucket-mb", 0.01]),
        soak("cnn", ["--hidden", 16, "--workers", 1]),
    ],
)
def test_a_job_learns(tmp_path, name, arguments):
    result = train(name, "--files", tmp_path / "files", *arguments)
    assert result["job"] == name
    assert len(result["step_ms"]) == len(result["loss"]) == 24
    assert min(result["step_ms"]) > 0
    assert sum(result["loss"][-5:]) < 0.9 * sum(result["loss"][:5])
    assert len(list((tmp_path / "files").iterdir())) == 64


@pytest.mark.parametrize(
    ("name", "ranks"), [soak("sharded", 2), soak("accumulated", 2), ("flat", 2), soak("residual", 3)]
)
def test_a_job_learns_from_memory(name, ranks):
    result = launch(ranks, name)
    assert result["job"] == name
    assert len(result["step_ms"]) == len(result["loss"]) == 24
    assert sum(result["loss"][-5:]) < 0.9 * sum(result["loss"][:5])


@pytest.mark.soak
def test_a_pipeline_ends_on_all_stages():
    """The first stage knows no loss: the last has it."""
    result = launch(4, "pipeline")
    assert len(result["step_ms"]) == 24
    assert result["loss"] == [0] * 24


@pytest.mark.soak
def test_half_precision_gradients_change_the_losses_but_little(tmp_path):
    plain, half = (train("mlp", "--files", tmp_path / "files", *more)["loss"] for more in ([], ["--fp16"]))
    assert half[0] == plain[0]
    assert half[1:] != plain[1:]
    assert half[-1] == pytest.approx(plain[-1], rel=0.05)
