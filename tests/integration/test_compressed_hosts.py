"""Compressed gradients that go between hosts alone: real ranks, with host names of their own."""

import json
import math
import subprocess
import sys
from socket import socket

import pytest

from tests.cases.record import JOBS, environment
from tests.integration.test_compressed import part_size, wires

pytestmark = pytest.mark.integration

SPECS = [
    f"{codec}@hierarchical"
    for codec in ("bf16@", "int8@", "topk:0.1@", "topk:0.1@all_to_all", "randk:0.25@", "powersgd:4@", "none@")
]

ON_HOST = 'hostname "$1" && shift && exec "$@"'


def train(folder, hosts, *arguments):
    """What each rank came to; `hosts` has the name of each one's host."""
    if subprocess.run(["unshare", "--uts", "hostname", "other"], capture_output=True, check=False).returncode:
        pytest.skip("a process cannot have a host name of its own here (unshare --uts)")
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = environment(
        PYTHONPATH=".", WORLD_SIZE=str(len(hosts)), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo"
    )
    job = [sys.executable, str(JOBS / "compressed.py"), str(folder), *arguments]
    ranks = [
        subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", ON_HOST, "sh", host, *job],
            env=shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    talk = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), talk
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(hosts))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("codecs"), ["one", "other", "one", "other"], "codecs", *SPECS)


@pytest.mark.parametrize("spec", SPECS)
def test_replicas_stay_equal_for_300_steps(trained, spec):
    bits, losses = {rank[spec][0] for rank in trained}, [rank[spec][1] for rank in trained]
    assert len(bits) == 1
    assert all(math.isfinite(loss) and loss < 3.0 for loss in losses)  # It begins above 3.


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_encoded_between_hosts_only(trained, spec):
    name, exchange, _ = spec.split("@")
    for rank in trained:
        _, _, sent, sizes, between = rank[spec]
        parts = [part_size(numel, 2) for numel in sizes]
        assert len(parts) == 2
        assert between == sum(wires(name, exchange, part, 2) for part in parts)
        assert sent == between + sum(2 * 4 * part for part in parts)  # To the host's other rank, and back.


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return train(tmp_path_factory.mktemp("jobs"), ["one", "one", "other", "other"], "by_hosts")


def test_codecs_change_during_the_run_and_a_checkpoint_resumes_bit_identically(jobs):
    ranks = [rank["swapped"] for rank in jobs]
    assert len({rank["first"] for rank in ranks} | {rank["again"] for rank in ranks}) == 1
    assert ranks[0]["events"] == []


def test_without_a_codec_it_is_the_mean(jobs):
    assert all(rank["plain"]["off"] < 1e-6 for rank in jobs)


def test_residuals_are_sent_after_a_change_of_codec(tmp_path):
    specs = ["sign@@hierarchical", "topk:0.05@all_to_all@hierarchical", "sign", "none@@hierarchical"]
    ranks = train(tmp_path, ["one", "one", "one", "other", "other", "other"], "nothing_is_lost", *specs)
    assert all(rank["off"] < 1e-5 for rank in ranks)


def test_all_ranks_revert_a_harmful_codec(jobs):
    ranks = [rank["guarded"] for rank in jobs]
    assert len({str(rank) for rank in ranks}) == 1  # NaN is not equal to itself.
    assert all(
        "topk:0.05 is given up for none: the squared error of the mean gradient is" in what
        for what in ranks[0]["lossy"]
    )
    assert len(ranks[0]["lossy"]) == 3
    assert ranks[0]["nan"] == ["topk:0.05 is given up for none: a gradient is not finite"]
    assert ["none", "hierarchical"] in ranks[0]["nan choices"]


def test_the_loss_scale_and_accumulation_change_nothing(jobs):
    for rank in jobs:
        assert rank["accumulated"]["False"] == rank["accumulated"]["True"]
        assert rank["accumulated"]["True"][1] == 40


def test_a_checkpoint_of_ranks_on_other_hosts_is_refused(jobs):
    assert all("to ranks on other hosts" in rank["elsewhere"]["refused"] for rank in jobs)
    assert len({rank["elsewhere"]["bits"] for rank in jobs}) == 1


def test_hosts_with_different_numbers_of_ranks_are_refused_and_the_job_continues(tmp_path):
    ranks = train(tmp_path, ["one", "other", "one"], "other_hosts")
    assert [rank["host"] for rank in ranks] == ["one", "other", "one"]
    for rank in ranks:
        assert "one has 2 ranks, and other has 1" in rank["compress"]
        assert rank["adopt"] == rank["compress"]
        assert rank["codec"] == ["none", "none"]
