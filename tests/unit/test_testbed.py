"""The test bed's parts that need no bed: rates, quotas on a made-up cgroup tree, owners, and what is said without rights."""

import os
import subprocess
import sys

import pytest

from benchmarks.testbed import Bed, system
from benchmarks.testbed.cgroup import find_controller
from benchmarks.testbed.network import bits_per_s
from benchmarks.testbed.owner import bed_of, is_abandoned, new_bed_name, start_time
from benchmarks.testbed.system import BedUnavailable, require_tools
from esprof.core.errors import UsageError


@pytest.mark.parametrize(("rate", "bits"), [("500kbit", 500_000), ("200mbit", 200_000_000), ("2.5gbit", 2_500_000_000)])
def test_rates_are_read_as_tc_writes_them(rate, bits):
    assert bits_per_s(rate) == bits


@pytest.mark.parametrize("rate", ["200", "fast", "0mbit", "-1mbit", "1 mbit", "1MB", ""])
def test_other_rates_are_refused(rate):
    with pytest.raises(UsageError, match="no link rate"):
        bits_per_s(rate)


def v1(tmp_path):
    """A v1 tree without groups, and the mounts that show it."""
    root = tmp_path / "cpu"
    root.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup {tmp_path}/set cgroup rw,cpuset 0 0\ncgroup {root} cgroup rw,relatime,cpu,cpuacct 0 0\n")
    return root, mounts


def v2(tmp_path, handed_on="cpuset cpu io"):
    root = tmp_path / "unified"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpuset cpu io\n")
    (root / "cgroup.subtree_control").write_text(handed_on + "\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {root} cgroup2 rw,nosuid 0 0\n")
    return root, mounts


def test_a_quota_in_cgroup_v1(tmp_path):
    root, mounts = v1(tmp_path)
    group = find_controller(mounts).group("host0")
    group.make(0.35)
    assert (root / "host0" / "cpu.cfs_period_us").read_text() == "10000"
    assert (root / "host0" / "cpu.cfs_quota_us").read_text() == "3500"
    assert (root / "host0" / "cpu.shares").read_text() == "262144"
    assert group.procs == root / "host0" / "cgroup.procs"


def test_a_quota_in_cgroup_v2(tmp_path):
    root, mounts = v2(tmp_path)
    controller = find_controller(mounts)
    controller.group("host0").make(1.2)
    assert (root / "host0" / "cpu.max").read_text() == "12000 10000"
    assert (root / "host0" / "cpu.weight").read_text() == "10000"
    assert controller.names() == ["host0"]


def test_a_v2_hierarchy_that_keeps_the_cpu_controller_to_itself(tmp_path):
    root, mounts = v2(tmp_path, handed_on="io")
    with pytest.raises(BedUnavailable, match="not handed on") as caught:
        find_controller(mounts)
    assert caught.value.remedy == f"echo +cpu > {root}/cgroup.subtree_control"


def test_no_cpu_controller_at_all(tmp_path):
    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("hugetlb\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup {tmp_path} cgroup rw,cpuacct 0 0\ncgroup2 {unified} cgroup2 rw 0 0\n")
    with pytest.raises(BedUnavailable, match="no cgroup hierarchy with the cpu controller"):
        find_controller(mounts)


def test_names_of_beds_differ_and_tell_whose_they_are():
    first, second = new_bed_name(), new_bed_name()
    assert first != second
    assert bed_of(f"{first}-switch") == bed_of(f"{first}-host12") == first
    assert not is_abandoned(f"{first}-host0")


@pytest.mark.parametrize(
    "name", ["esprof-bed-1-2", "my-esprof-bed-1-2-3-host0", "esprof-bed-1-2-3-host0-x", "host0", ""]
)
def test_names_of_others_are_no_beds(name):
    assert bed_of(name) is None
    assert not is_abandoned(name)


def test_a_name_whose_owner_is_gone_is_abandoned():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = f"esprof-bed-{process.pid}-{start_time(process.pid)}-0-host0"
    assert not is_abandoned(name)
    process.communicate(b"\n")
    assert is_abandoned(name)


def test_a_zombie_owns_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(process.pid) is None
    process.communicate()


def test_a_later_process_with_the_same_pid_is_no_owner():
    pid = os.getpid()
    assert is_abandoned(f"esprof-bed-{pid}-{start_time(pid) - 1}-0-switch")


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    with pytest.raises(BedUnavailable, match="needs root"):
        require_tools()


def test_missing_commands_are_named_with_their_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(system.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ip").touch(mode=0o755)
    with pytest.raises(BedUnavailable, match="no such command: tc, nsenter") as caught:
        require_tools()
    assert caught.value.remedy == "Install iproute2 util-linux."


def test_a_queue_into_which_no_frame_fits_is_refused():
    with pytest.raises(UsageError, match="no frame fits into a queue of 9999 bytes"):
        Bed(queue=9_999)
