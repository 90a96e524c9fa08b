"""TCP congestion controls of a job on two hosts of the test bed, whose links have short queues: measured by a probe, priced,
and set by `esprof verify`. Skipped where there can be no bed."""

import json
import sys

import pytest

from benchmarks.testbed import BedUnavailable, hosts
from esprof.recorder.shared import tcp
from esprof.replay import Replayed
from tests.cases.record import ESPROF, run

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_other_beds")]

RATES = ("200mbit", "200mbit")
OTHER = "cubic"
"""Hosts of the bed use reno."""


@pytest.fixture(scope="module")
def job(no_other_beds, tmp_path_factory):
    """The command of the job."""
    try:
        with hosts(cpu=[0.1], rate=["1mbit"]):
            pass
    except BedUnavailable as missing:
        pytest.skip(str(missing))
    if OTHER not in tcp.loaded_controls():
        pytest.skip(f"the kernel has not loaded {OTHER}")
    files = tmp_path_factory.mktemp("files")
    bed = ["benchmarks.testbed", "torchrun", "--cpu", "0.7", "0.7", "--rate", *RATES, "--queue", "100000", "--"]
    small = ["--steps", "1000", "--hidden", "64", "--files", str(files / "mlp")]
    return [sys.executable, "-m", *bed, "-m", "benchmarks.jobs.mlp", *small]


@pytest.fixture(scope="module")
def recorded(job, tmp_path_factory):
    """The probed job."""
    out = tmp_path_factory.mktemp("congestion") / "run"
    ended = run([*ESPROF, "probe", "-o", str(out), "--budget", "30s", "--", *job], out)
    assert ended.code == 0, ended.stderr
    return ended.run


def test_the_probe_measures_in_the_namespaces_of_the_hosts(recorded):
    assert {one.congestion for one in recorded.probes.conditions} == {"reno"}
    controls = {one.name.partition(":")[2] for one in recorded.probes.sweeps if one.kind == "congestion"}
    assert {"reno", OTHER} <= controls


def test_what_was_measured_is_priced(recorded):
    pricer = Replayed.of(recorded, max_error_pct=1000).pricer
    other, present = pricer.answers([f"network.cc={OTHER}", "network.cc=reno"])
    assert other.answered, other.reason
    assert "reno is the TCP congestion control of the hosts already" in present.reason


def test_verify_sets_the_control_on_all_hosts(recorded, job):
    few = ["--set", f"network.cc={OTHER}", "--repeats", "1", "--skip", "2", "--steps", "10", "--json"]
    ended = run([*ESPROF, "verify", str(recorded.path), *few, "--", *job])
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["knobs"] == [{"name": "network.cc", "before": "reno", "after": OTHER}]
