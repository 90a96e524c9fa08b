"""The example that trains in pipeline stages: split as advised, it learns what one process learns."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import record
from tests.cases.command_line import esprof

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "parallel.py"
LAYERS = ("first", "middle0", "middle1", "middle2", "last")


def losses(command):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", done.stdout)]


def advised(folder, devices, network, **weights):
    """The file with the split of five equal layers over so many equal devices."""
    layers, gpus, split = (folder / name for name in ("layers.json", "gpus.yaml", "split.json"))
    times = {"CPU": {"forward_us": 1000, "backward_us": 2000} | weights}
    each = {"times": times, "output_bytes": 0, "parameter_bytes": 10**7}
    layers.write_text(json.dumps({"microbatch": 4, "layers": [{"name": name, **each} for name in LAYERS]}))
    gpus.write_text(f"devices: {{CPU: {devices}}}\nnetwork_gb_per_s: {network}")
    done = esprof("recommend", layers, "--only", "parallel", "--inventory", gpus, "--batch", 32, "-o", split)
    assert done.returncode == 0, done.stderr
    return split


@pytest.fixture(scope="module")
def alone():
    return losses([sys.executable, str(EXAMPLE), "--steps", "4"])


@pytest.mark.parametrize(
    ("processes", "network", "weights", "schedule", "stages"),
    [
        (3, 0.01, {}, "1f1b", 3),
        (2, 0.01, {"weights_us": 1000}, "zbv", 4),
        (2, 0.01, {"weights_us": 1000}, "zb1p", 4),
        (2, 100, {}, "1f1b", 1),
    ],
    ids=["1f1b", "zbv", "zb1p", "replicas"],
)
def test_a_split_training_learns_what_one_process_learns(
    alone, tmp_path, processes, network, weights, schedule, stages
):
    split = advised(tmp_path, processes, network, **weights)
    plans = json.loads(split.read_text())["plans"]
    number = 1 + [(plan["schedule"], len(plan["stages"])) for plan in plans].index((schedule, stages))
    together = losses(record.ranks(processes, EXAMPLE, "--split", split, "--steps", 4, "--plan", number))
    assert together == pytest.approx(alone, abs=2e-6)


def test_shared_and_recomputed_layers_learn_the_same(alone, tmp_path):
    """These are advised for larger models only: the advice is changed by hand."""
    split = advised(tmp_path, 2, 100)
    advice = json.loads(split.read_text())
    wanted = advice["plans"][0]["torch"]
    wanted["mesh"] = {"pp": 1, "dp": 1, "tp": 2}
    wanted |= {"recompute": "layers", "parallelize": {"up": "ColwiseParallel", "down": "RowwiseParallel"}}
    split.write_text(json.dumps(advice))
    assert losses(record.ranks(2, EXAMPLE, "--split", split, "--steps", 4)) == pytest.approx(alone, abs=2e-6)


def test_a_plan_for_other_numbers_of_processes_is_refused(tmp_path):
    split = advised(tmp_path, 3, 0.01)
    done = subprocess.run(record.ranks(2, EXAMPLE, "--split", split), capture_output=True, text=True, timeout=300)
    assert "the plan needs 3 processes" in done.stderr
