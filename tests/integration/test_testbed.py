"""Real beds: unlike hosts train together, rates hold, and nothing stays behind. Skipped where there can be no bed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.testbed import BedUnavailable, hosts, network, probe
from benchmarks.testbed.bed import clean
from benchmarks.testbed.cgroup import find_controller
from benchmarks.testbed.owner import bed_of, start_time
from esprof.core.errors import UsageError
from tests.cases.record import recording, run

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_other_beds")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _room(no_other_beds):
    """Skip where this machine cannot hold a bed."""
    try:
        with hosts(cpu=[0.1], rate=["1mbit"]):
            pass
    except BedUnavailable as missing:
        pytest.skip(str(missing))


def command_line(*arguments):
    return [sys.executable, "-m", "benchmarks.testbed", *map(str, arguments)]


def things():
    """All namespaces and cgroups of beds that there are, whosever they are, as (kind, name)."""
    found = {("namespace", name) for name in network.names()} | {("cgroup", name) for name in find_controller().names()}
    return {(kind, name) for kind, name in found if bed_of(name)}


def things_of(owner):
    return {(kind, name) for kind, name in things() if name.startswith(f"esprof-bed-{owner}-")}


def spinning(bed, host):
    """A process on the host that has entered it."""
    process = bed.run(
        host, [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"\n"
    return process


def test_a_job_trains_on_unlike_hosts_and_nothing_stays_behind(tmp_path):
    with hosts(cpu=[0.6, 0.3], rate=["200mbit", "200mbit"]) as bed, (tmp_path / "out").open("wb+") as output:
        assert len(things_of(os.getpid())) == 5
        arguments = [
            "--steps",
            "20",
            "--hidden",
            "64",
            "--layers",
            "2",
            "--samples",
            "64",
            "--files",
            str(tmp_path / "files"),
        ]
        job = bed.torchrun(["-m", "benchmarks.jobs.gpt", *arguments], stdout=output)
        assert job.wait(timeout=300) == [0, 0]
    result = json.loads((tmp_path / "out").read_bytes())
    assert len(result["step_ms"]) == 20
    assert result["loss"][-1] < result["loss"][0]
    assert things_of(os.getpid()) == set()


def test_a_process_is_on_its_host_and_is_what_run_returned():
    seen = "import os; print(os.getpid(), os.readlink('/proc/self/ns/net')); print(open('/proc/self/cgroup').read())"
    with hosts(cpu=[0.2, 0.2], rate=[None, None]) as bed:
        process = bed.run(1, [sys.executable, "-c", seen], stdout=subprocess.PIPE)
        place, _, cgroups = process.communicate()[0].decode().partition("\n")
        namespace = (network.NAMESPACES / bed.hosts[1].name).stat().st_ino
        assert place == f"{process.pid} net:[{namespace}]"
        assert f"/{bed.hosts[1].name}\n" in cgroups
        assert bed.run(0, ["false"]).wait() == 1


def test_links_and_cpus_give_no_more_than_asked_and_change_while_in_use():
    with hosts(cpu=[0.5, 0.5], rate=["20mbit", None]) as bed:
        assert probe.transfer(bed, 1, 0.01) < 22e6
        bed.set_rate(0, None)
        bed.set_rate(1, "20mbit")
        assert probe.transfer(bed, 1, 0.01) < 22e6
        assert bed.hosts[1].rate == "20mbit"

        bed.set_rate(1, "1mbit")
        receiver = bed.run(1, probe.load_command("receive"))
        sender = bed.run(0, probe.load_command("send", bed.hosts[1].address, 40, 0))
        time.sleep(1)
        bed.set_rate(1, None)  # At 1 Mbit/s the 40 MB would take more than five minutes.
        assert sender.wait(timeout=100) == receiver.wait(timeout=100) == 0

        assert next(probe.cpu([0.2], 1.0))["value"] < 0.22


def test_a_cpu_rate_changes_while_a_process_runs(tmp_path):
    script = tmp_path / "spin.py"
    script.write_text("from benchmarks.testbed.load import spin\nwhile True: print(spin(0.5), flush=True)")
    with hosts(cpu=[0.8], rate=[None]) as bed:
        process = bed.run(0, [sys.executable, str(script)], {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
        process.stdout.readline()
        bed.set_cpu(0, 0.1)
        process.stdout.readline()  # Part of this was before the change.
        assert float(process.stdout.readline()) < 0.15


def test_hosts_come_and_go():
    with hosts(cpu=[0.2, 0.2], rate=[None, None]) as bed:
        doomed = spinning(bed, 1)
        bed.remove(1)
        assert doomed.wait(timeout=30) == -signal.SIGKILL
        assert len(things_of(os.getpid())) == 3
        with pytest.raises(UsageError, match="no host 1"):
            bed.run(1, ["true"])
        added = bed.add(0.2, "1gbit")
        assert added.index == 2
        receiver = bed.run(2, probe.load_command("receive"))
        assert bed.run(0, probe.load_command("send", added.address, 1, 0.01), stdout=subprocess.DEVNULL).wait(30) == 0
        assert receiver.wait(30) == 0


def test_two_beds_at_once_do_not_meet():
    with hosts(cpu=[0.2], rate=[None]) as one:
        with hosts(cpu=[0.2, 0.2], rate=[None, None]) as other:
            assert probe.transfer(other, 1, 0.01) > 0
            assert one.hosts[0].address == other.hosts[0].address
            assert len(things_of(os.getpid())) == 8
        survivor = spinning(one, 0)
        assert survivor.poll() is None
        assert len(things_of(os.getpid())) == 3


def test_a_rank_that_fails_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)")
    with hosts(cpu=[0.2, 0.2], rate=[None, None]) as bed:
        assert bed.torchrun([str(script)]).wait(timeout=100) == [-signal.SIGKILL, 3]


@pytest.mark.parametrize("cpu", [[0.4] * 2 * (os.cpu_count() or 1) + [0.4], [0.05]])
def test_quotas_that_the_machine_cannot_keep_are_refused(cpu):
    with pytest.raises(UsageError, match="cores"), hosts(cpu=cpu, rate=[None] * len(cpu)):
        pytest.fail("the bed was made")
    assert things_of(os.getpid()) == set()


@pytest.fixture
def owner(tmp_path):
    """A process that owns a bed, on whose hosts two processes spin."""
    script = tmp_path / "spin.py"
    script.write_text("import os, pathlib\npathlib.Path(os.environ['RANK']).touch()\nwhile True: pass")
    command = command_line("torchrun", "--cpu", 0.2, 0.2, "--rate", "1gbit", "none", "--", script)
    # Under nohup SIGHUP would be ignored, as it should be.
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()
    clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_owner_leaves_nothing(owner, number):
    assert len(things_of(owner.pid)) == 5
    owner.send_signal(number)
    assert owner.wait(timeout=60) == 128 + number
    assert things_of(owner.pid) == set()


def test_the_next_bed_removes_what_a_killed_owner_left(owner):
    left = things_of(owner.pid)
    groups = [find_controller().group(name) for kind, name in left if kind == "cgroup"]
    workers = [int(pid) for group in groups for pid in group.procs.read_text().split()]
    assert len(workers) == 2
    owner.kill()
    owner.wait()
    assert things_of(owner.pid) == left
    with hosts(cpu=[0.1], rate=[None]):
        assert things_of(owner.pid) == set()
        assert [start_time(pid) for pid in workers] == [None, None]


def test_no_interface_shows_on_the_machine():
    before = set(Path("/sys/class/net").iterdir())
    with hosts(cpu=[0.1, 0.1], rate=["1gbit", None]):
        assert set(Path("/sys/class/net").iterdir()) == before


def test_clean_leaves_the_beds_of_the_living_and_the_things_of_others_alone(owner):
    before = things_of(owner.pid)
    strange = f"esprof-bed-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", strange], check=True)
    try:
        assert subprocess.run(command_line("clean"), cwd=ROOT, capture_output=True).returncode == 0
        assert things_of(owner.pid) == before
        assert strange in network.names()
    finally:
        network.remove(strange)


def test_root_without_rights_is_told_what_is_missing():
    """As in a container: root, but not allowed to make namespaces."""
    lesser = ["setpriv", "--bounding-set=-sys_admin,-net_admin"]
    command = [*lesser, *command_line("torchrun", "--cpu", 0.1, "--rate", "none", "--", "-c", "")]
    before = things()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("testbed: making a network namespace failed: ")
    assert "Traceback" not in done.stderr
    assert things() == before


def test_the_recorder_records_every_host(tmp_path):
    small = ["--steps", "16", "--hidden", "64", "--layers", "2", "--samples", "64", "--files", str(tmp_path / "files")]
    job = command_line(
        "torchrun", "--cpu", 0.6, 0.6, "--rate", "none", "none", "--", "-m", "benchmarks.jobs.gpt", *small
    )
    ended = run(recording(tmp_path / "run", job, skip=2, warmup=1, steps=4, stack_steps=0), tmp_path / "run")
    assert ended.code == 0
    assert ended.run.ranks == [0, 1]
    assert ended.run.warnings == ()
