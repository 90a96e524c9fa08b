"""The benchmark of training programs tells state that moves with ESTs from a dependence on the rank or the processes."""

import json
import re
import sys

import pytest

from tests.cases.record import run

pytestmark = pytest.mark.integration

EXPECTED = {
    "counter_of_the_class": "equal",
    "loss_by_number_of_processes": "reported",
    "loss_by_rank": "stopped by a proof",
    "teacher_renewed_by_the_loss": "refused",
}


def test_each_outcome_is_told():
    done = run([sys.executable, "-m", "benchmarks.programs", "--only", *EXPECTED])
    assert done.code == 0, done.stderr
    found = {line["name"]: line["context"] for line in map(json.loads, done.stdout.splitlines())}
    assert {name: one["outcome"] for name, one in found.items()} == EXPECTED
    assert found["counter_of_the_class"]["why"] == "", "nothing is reported of a program without a cause"
    assert re.search(r"places\.py:\d+ reads the number of processes", found["loss_by_number_of_processes"]["why"])
