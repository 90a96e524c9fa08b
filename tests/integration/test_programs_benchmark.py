"""The benchmark of training programs tells state that moves with ESTs from a dependence on the rank or the processes."""

import json
import sys

import pytest

from tests.cases.record import run

pytestmark = pytest.mark.integration

EXPECTED = {
    "counter_of_the_class": "equal",
    "loss_by_number_of_processes": "silent",
    "loss_by_rank": "stopped by a proof",
    "teacher_renewed_by_the_loss": "refused",
}


def test_each_outcome_is_told():
    done = run([sys.executable, "-m", "benchmarks.programs", "--only", *EXPECTED])
    assert done.code == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    assert {line["name"]: line["context"]["outcome"] for line in lines} == EXPECTED
