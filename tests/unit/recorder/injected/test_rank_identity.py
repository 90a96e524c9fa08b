"""The CPUs that this process may use, against what the system and made-up control groups say."""

import os

import pytest

from esprof.recorder.injected.rank_identity import cpu_quota, gpu_cpus, numbers_in, usable_cpus
from esprof.recorder.injected.steps import control_groups


def test_this_process_may_run_where_the_system_lets_it():
    assert set(usable_cpus()) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "100000 0"}, None),
        ({"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.cfs_quota_us": "50000\n"}, None),
        ({"cpu.max": "400000 100000\n", "outer/cpu.max": "200000 100000\n"}, 2.0),
    ],
)
def test_the_narrowest_quota_counts(tmp_path, monkeypatch, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in files if "period" not in name]
    monkeypatch.setattr(control_groups, "files", lambda *names: iter([*paths, str(tmp_path / "hidden")]))
    assert cpu_quota() == quota


def test_what_cannot_be_read_is_not_known(monkeypatch):
    def denied(*names):
        raise PermissionError("/proc/self/cgroup")

    monkeypatch.setattr(control_groups, "files", denied)
    monkeypatch.setattr(os, "sched_getaffinity", denied)
    assert (usable_cpus(), cpu_quota()) == ([], None)


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5])])
def test_lists_of_the_kernel_are_numbers(text, numbers):
    assert numbers_in(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-b"])
def test_other_text_is_no_list(text):
    with pytest.raises(ValueError):
        numbers_in(text)


def test_without_a_gpu_no_cpus_are_near_it():
    assert gpu_cpus() == []
