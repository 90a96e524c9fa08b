"""Layers of jobs that are really recorded, and plans for them."""

import json
import runpy

import pytest

from tests.cases.record import ESPROF, JOBS, job, record, run

pytestmark = pytest.mark.integration

INVENTORY = "devices: {DEVICE: 2}\nnetwork_gb_per_s: 100\n"


def recorded(path, kind):
    ended = record(path, job("layered.py", kind), memory=True, skip=2, warmup=1, steps=6, stack_steps=0)
    assert ended.code == 0, ended.stderr
    return ended.run


def planned(path, device):
    inventory = path.with_name("devices.yaml")
    inventory.write_text(INVENTORY.replace("DEVICE", json.dumps(device)))
    options = ["--only", "parallel", "--inventory", str(inventory), "--batch", "64", "--json"]
    return run([*ESPROF, "recommend", str(path), *options])


@pytest.mark.promise
def test_the_layers_of_a_recorded_model_are_planned(tmp_path):
    device = recorded(tmp_path / "run", "chain").rank(0).device
    answer = json.loads(planned(tmp_path / "run", device).stdout)
    (profile,) = answer["model"]["measured"]
    layers = profile["layers"]
    assert [one["name"].removeprefix("Chain.") for one in layers] == [
        "words to Chain.dropout",
        *(f"blocks.{number}" for number in range(3)),
        "head.0",
        "head.1",
    ]
    made = runpy.run_path(str(JOBS / "layered.py"))
    model, hidden = made["Chain"](), 4 * made["BATCH"] * made["LENGTH"] * made["WIDTH"]
    of_layers = [[model.words, model.places], *([block] for block in model.blocks), *([one] for one in model.head)]
    assert [one["parameter_bytes"] for one in layers] == [
        sum(4 * parameter.numel() for module in of for parameter in module.parameters()) for of in of_layers
    ]
    outputs = [*[hidden] * 5, 4 * made["BATCH"] * made["LENGTH"] * made["WORDS"]]
    assert [one["output_bytes"] for one in layers] == outputs
    # A block keeps its inputs of both products, of the activation and of the norm, and the norm's mean and deviation.
    statistics = 2 * 4 * made["BATCH"] * made["LENGTH"]
    assert [one["kept_bytes"] for one in layers[1:4]] == [hidden * (1 + 4 + 4 + 1) + statistics] * 3
    times = [one["times"][device] for one in layers]
    assert all(one["forward_us"] > 0 and one["backward_us"] > 0 for one in times)
    assert profile["microbatch"] == made["BATCH"]
    assert profile["state_factor"] == pytest.approx(4, abs=0.01)
    assert profile["optimizer_factor"] == pytest.approx(2, abs=0.01)
    assert answer["lower_bound_us"] <= answer["plans"][0]["step_us"]


def test_a_model_with_branches_is_declined(tmp_path):
    device = recorded(tmp_path / "run", "branches").rank(0).device
    ended = planned(tmp_path / "run", device)
    assert ended.code == 1
    assert "the model is no chain of modules: Branches.head uses Branches.left and Branches.right" in ended.stderr
