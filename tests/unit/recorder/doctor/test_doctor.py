"""`esprof doctor`: each trial on a host that lacks what it tries, the verdict, and how it is drawn."""

import errno
import fcntl
import io
import os
import socket
import sys
from types import SimpleNamespace

import msgspec
import pytest

from esprof.recorder.doctor import examine, host, network, torch_trial
from esprof.recorder.doctor.health import CLUSTER, Health, fail, ok, warn
from esprof.reports.terminal.health import draw_health
from esprof.reports.terminal.screen import Screen


def states(checks):
    return {check.name: check.state for check in checks}


def test_this_host_is_examined(tmp_path):
    checks = [host.check_python(), *host.check_folder(tmp_path), host.check_shared_memory(), network.check_loopback()]
    assert states(checks) | {"disk": "ok", "shared memory": "ok", "UDP": "ok"} == {
        "python": "ok", "folder": "ok", "locks": "ok", "disk": "ok", "shared memory": "ok", "UDP": "ok",
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert all((check.remedy is None) == (check.state == "ok") for check in checks)


def test_an_old_python_fails(monkeypatch):
    monkeypatch.setattr(host, "MIN_PYTHON", (99, 0))
    assert host.check_python().state == "fail"


def test_missing_libraries_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(host, "find_spec", lambda name: None if name == "yaml" else object())
    assert host.check_libraries().remedy == "pip install pyyaml"


def test_a_folder_that_refuses_writes_fails(tmp_path):
    (tmp_path / "file").write_text("")
    (check,) = host.check_folder(tmp_path / "file")
    assert (check.name, check.state) == ("folder", "fail")


def test_a_full_disk_and_a_file_system_without_locks_are_warnings(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    checks = states(host.check_folder(tmp_path))
    assert (checks["locks"], checks["disk"]) == ("warn", "warn")
    assert host.check_shared_memory().state == "warn"


def test_nfs_has_locks(tmp_path, monkeypatch):
    """It refuses to lock what was opened to read only (`flock(2)`, "NFS details")."""

    def as_nfs(file, _):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    assert states(host.check_folder(tmp_path))["locks"] == "ok"


def test_kernel_files_that_are_not_there_are_warnings(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "io").write_text("rchar: 1")
    checks = states(host.check_kernel_files(tmp_path))
    assert checks == {"run queue": "warn", "reads": "ok", "memory": "warn", "limits": "warn"}


def test_a_busy_machine_and_a_slow_clock_are_warnings(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 0, 0))
    assert host.check_cpus().state == "warn"
    monkeypatch.setattr(host, "_MAX_CLOCK_NS", 0)
    assert host.check_clock().state == "warn"


def test_a_terminal_without_unicode_is_a_warning():
    ascii_terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert host.check_terminal(ascii_terminal, {}).state == "warn"
    assert "no colour" in host.check_terminal(ascii_terminal, {"NO_COLOR": "1"}).found
    assert host.check_terminal(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).state == "ok"


def test_a_host_without_address_and_a_closed_loopback_are_warnings(monkeypatch):
    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert network.check_name("nowhere").state == "warn"
    assert network.check_loopback("192.0.2.1").state == "warn"


def test_a_python_process_loads_the_recorder(tmp_path):
    assert host.check_hook().state == "ok"
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    wrapper.chmod(0o755)
    assert host.check_hook(str(wrapper)).state == "fail"
    assert host.check_hook(str(tmp_path / "no-python")).state == "fail"


@pytest.mark.parametrize(
    ("version", "state"), [("2.5.1", "fail"), ("2.6.0+cu124", "ok"), ("2.15.0", "ok"), ("2.16.0a0+git1", "warn")]
)
def test_the_version_of_torch(version, state):
    assert torch_trial.check_version(version).state == state


def torch_with(events, has_gpu=False):
    """A torch whose profiler records `events`: pairs of name and kind of device."""

    class Profile:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def events(self):
            return [SimpleNamespace(name=name, device_type=kind) for name, kind in events]

    number = SimpleNamespace(item=lambda: 0)

    class Matrix:
        def __matmul__(self, _):
            return SimpleNamespace(sum=lambda: number)

    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: has_gpu),
        profiler=SimpleNamespace(ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1), profile=lambda activities: Profile()),
        autograd=SimpleNamespace(DeviceType=SimpleNamespace(CUDA="gpu")),
        ones=lambda *_, device: Matrix(),
    )


@pytest.mark.parametrize(
    ("events", "has_gpu", "state"),
    [([], False, "fail"), ([("aten::mm", "cpu")], False, "ok"), ([("aten::mm", "cpu")], True, "fail"),
     ([("aten::mm", "cpu"), ("gemm", "gpu")], True, "ok")],
)  # fmt: skip
def test_a_profiler_that_records_nothing_fails(events, has_gpu, state):
    assert torch_trial.check_profiler(torch_with(events, has_gpu)).state == state


def test_a_driver_without_a_gpu_is_a_warning():
    torch = torch_with([])
    assert torch_trial.check_devices(torch, has_driver=True).state == "warn"
    assert torch_trial.check_devices(torch, has_driver=False).state == "ok"


@pytest.mark.parametrize(
    ("program", "found"),
    [("import time; time.sleep(60)", "no answer in time"), ("raise SystemExit('no gloo')", "no gloo")],
)
def test_trials_of_torch_that_hang_or_die_fail(program, found, monkeypatch, tmp_path):
    monkeypatch.setattr(examine, "module_line", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(examine, "_of_host", lambda folder: ())
    health = examine.examine(tmp_path, max_wait_s=1.0)
    assert not health.sound
    assert health.checks[-1].found == found


def test_a_trial_that_is_complete_may_end_late(monkeypatch, tmp_path):
    said = msgspec.json.encode(ok("gloo", "two processes add up numbers", "Groups work.")).decode()
    program = f"import time; print({said!r}, flush=True); time.sleep(60)"
    monkeypatch.setattr(examine, "module_line", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(examine, "_of_host", lambda folder: ())
    health = examine.examine(tmp_path, max_wait_s=5.0)
    assert health.sound
    assert [one.name for one in health.checks] == ["gloo"]


def test_checks_that_are_not_ok_are_explained():
    checks = (ok("python", "3.11", "It runs."), warn("disk", "1 GiB free", "Runs need it.", "Free some."))
    text = draw_health(Health(sound=True, checks=checks, cluster=CLUSTER, took_s=1))
    assert text.startswith("This installation is sound, with 1 warning.")
    assert "Runs need it. Free some." in text
    assert "It runs." not in text
    broken = (*checks, fail("gloo", "it fails", "Groups need it.", "Set it."))
    assert draw_health(Health(sound=False, checks=broken, cluster=CLUSTER, took_s=1)).startswith("Not sound: gloo")
    narrow = draw_health(Health(sound=True, checks=checks, cluster=CLUSTER, took_s=1), Screen(width=40))
    assert max(map(len, narrow.splitlines())) <= 40
