"""What it costs a running elastic job to change its number of processes, and that no bit of the training shows it.

    python -m benchmarks.scaling [--ways torchrun cold warm kills plans] [--changes 10] [--seed 0]

Two hosts of the test bed (root) stand for two machines, without a CPU quota; the state has 4 MB. `torchrun`: a host joins
a job of one by `esprof elastic launch --hosts`, is asked to leave by SIGTERM, and so on. `cold` and `warm`: one controller
does the same by generations of processes, started when those before have left, or beforehand. `kills`: a process that is
drawn at random gets SIGKILL at a random moment. `plans`: a running job of two processes gets assignments drawn at random.
`judged`: on hosts of 1.0 and 0.3 cores it gets one that puts all ESTs on the slow host, and one that promises too much.

`downtime_s` is the median time from the end of the last step with the old processes to the end of the first one with the
new, with its phases: leave (agree, save), start (until the new process runs, for a warm one the script), import, process
group, restore (all of making the trainer), first step. `lost_steps`: those that are done again after a kill, at the most.
`equal`: 1 where the hashes of all steps are those of one process that was never stopped.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figures import show
from benchmarks.jobs.scaled import N_EST
from benchmarks.testbed import network
from benchmarks.testbed.bed import Bed, hosts
from esprof.core.output import write_bytes
from esprof.elastic.launch.generation import WorkerSlot
from esprof.elastic.launch.messages import want
from esprof.elastic.launch.supervisor import Supervisor, SupervisorSettings
from esprof.elastic.verify.diff import diff
from esprof.run.logs import HISTORY

PHASES = ("leave", "start", "import", "process group", "restore", "first step")
SCRIPT = ("-m", "benchmarks.jobs.scaled")
_STEPS_BETWEEN = 10
"""That a job makes before its processes are changed again."""
_COMES_S = 150.0

Moments = list[dict[str, Any]]


def main() -> None:
    ways: dict[str, Callable[[Path, int, int], None]] = {
        "torchrun": by_torchrun,
        "cold": lambda folder, changes, seed: by_generations(folder, changes, warm=False),
        "warm": lambda folder, changes, seed: by_generations(folder, changes, warm=True),
        "kills": kills,
        "plans": plans,
        "judged": judged,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=ways, default=list(ways))
    parser.add_argument("--changes", type=int, default=10, help="Of each kind; twice as many kills and plans.")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for way in asked.ways:
        with tempfile.TemporaryDirectory() as folder:
            ways[way](Path(folder), asked.changes, asked.seed)


def by_torchrun(folder: Path, changes: int, seed: int) -> None:
    with two_hosts() as bed:
        launchers: list[subprocess.Popen[bytes]] = []

        def launch(index: int) -> subprocess.Popen[bytes]:
            meet = [
                "--hosts",
                "1:2",
                "--rendezvous",
                f"{bed.hosts[0].address}:29400",
                "--folder",
                folder / f"host{index}",
            ]
            words = [*_namespace(bed, index), sys.executable, "-m", "esprof", "elastic", "launch", *meet, "--", *SCRIPT]
            log = (folder / f"host{index}.log").open("ab")
            launchers.append(subprocess.Popen([*map(str, words), str(folder)], stdout=log, stderr=log))
            return launchers[-1]

        def of(world: int, launcher: subprocess.Popen[bytes]) -> None:
            until_steps(folder, world, launcher.poll)

        try:
            first = launch(0)
            of(1, first)
            for _ in range(changes):
                second = launch(1)
                of(2, first)
                second.terminate()
                of(1, first)
                expect(second.wait(60), "the host that left")
            first.terminate()
            expect(first.wait(60), "the host that stayed")
        except BaseException:
            for log in folder.glob("host*.log"):
                sys.stderr.write(f"--- {log.name}\n{log.read_text()[-4000:]}\n")
            raise
        finally:
            for launcher in launchers:
                _end(launcher)
    report("torchrun", folder, changes)


def by_generations(folder: Path, changes: int, *, warm: bool) -> None:
    def change() -> None:
        until_steps(folder, 1)
        for _ in range(changes):
            for world in (2, 1):
                want(folder / "launch", world)
                until_steps(folder, world)

    with two_hosts() as bed:
        supervised(
            folder,
            [WorkerSlot(_namespace(bed, index), host.address) for index, host in bed.hosts.items()],
            change,
            warm=warm,
        )
    report("generations, warm" if warm else "generations, cold", folder, changes)


def kills(folder: Path, changes: int, seed: int) -> None:
    draw = random.Random(seed)

    def kill() -> None:
        for life in range(2 * changes):
            pids = until(partial(life_of, folder, life, 2), "the processes of a life")
            time.sleep(draw.uniform(0, 3.0))
            os.kill(draw.choice(pids), signal.SIGKILL)
        until(lambda: life_of(folder, 2 * changes, 2), "the last life")
        until_steps(folder, 2)

    supervised(folder, [WorkerSlot(), WorkerSlot()], kill, world=2)
    events = HISTORY.read(folder / "run")
    crashes = [event for event in events if event.what == "scaled" and "signal 9" in event.reason]
    steps = [moment["step"] for moment in moments(folder) if moment["what"] == "step"]
    lost = [before - after + 1 for before, after in pairwise(steps) if after <= before]
    context = {"kills": 2 * changes, "told_in_history": len(crashes), "checkpoint_every": 20, "seed": seed} | machine()
    show("lost_steps", max(lost, default=0), "steps at the most", context)
    tell_equal("kills", folder, context)


def plans(folder: Path, changes: int, seed: int) -> None:
    draw = random.Random(seed)
    worlds = []

    def adopt() -> None:
        until_steps(folder, 2)
        for version in range(1, 2 * changes + 1):
            ests: list[list[int]] = [[], []]
            for est in draw.sample(range(N_EST), N_EST):
                draw.choice(ests).append(est)
            write_bytes(folder / "plan.json", plan_bytes(version, ests))
            until(partial(_is_answered, folder, version), "an answer")
            worlds.append(ests)
        until_steps(folder, 2)

    supervised(folder, [WorkerSlot(), WorkerSlot()], adopt, world=2)
    events = [event.what for event in HISTORY.read(folder / "run") if event.what in ("adopted", "refused", "reverted")]
    context = {name: events.count(name) for name in ("adopted", "refused", "reverted")} | {"seed": seed} | machine()
    tell_equal("plans", folder, context)
    if events.count("adopted") != 2 * changes:
        reasons = {event.reason for event in HISTORY.read(folder / "run") if event.what == "refused"}
        raise SystemExit(f"plans: {events.count('adopted')} of {2 * changes} were adopted: {reasons}")


def judged(folder: Path, changes: int, seed: int) -> None:
    window, ends = 20, ("kept", "missed", "reverted")
    bad, promising = [[], list(range(N_EST))], [list(range(N_EST - 1)), [N_EST - 1]]
    with hosts((1.0, 0.3), (None, None)) as bed:
        running = bed.torchrun([*SCRIPT, str(folder)])
        for version, ests in enumerate((bad, promising), 1):
            until(partial(_has_steps, folder, 2 * window * version), "steps before a plan")
            write_bytes(folder / "plan.json", plan_bytes(version, ests, window=window, promised_us=1.0))
            until(partial(_has_ended, folder, version, ends), "a verdict")
        until_steps(folder, 2)
        for process in running.processes:
            process.terminate()
        running.wait(60)
    events = {(event.what, event.version): event for event in HISTORY.read(folder / "run")}
    adopted, reverted, missed = (events[key] for key in (("adopted", 1), ("reverted", 1), ("missed", 2)))
    context = {"window": window, "before_us": reverted.before_us, "after_us": reverted.after_us} | machine()
    show("bad_plan_left_after", reverted.step - adopted.step, "steps", context)
    context = {"before_us": missed.before_us, "after_us": missed.after_us, "promised_us": missed.promised_us}
    show("promise_missed_and_kept", 1.0, "1 is yes", context | machine())
    tell_equal("judged", folder, machine())


def _has_steps(folder: Path, count: int) -> bool:
    return sum(moment["what"] == "step" for moment in moments(folder)) > count


def _has_ended(folder: Path, version: int, ends: Sequence[str]) -> bool:
    return any(event.version == version and event.what in ends for event in HISTORY.read(folder / "run"))


def _is_answered(folder: Path, plans: int) -> bool:
    """Whether the job has said something of so many plans."""
    return sum(event.what in ("adopted", "refused") for event in HISTORY.read(folder / "run")) >= plans


def plan_bytes(
    version: int, ests: Sequence[Sequence[int]], *, window: int = 100_000, promised_us: float = 1e9
) -> bytes:
    """A plan that assigns ESTs; unless told otherwise it promises so little that nothing is made of its outcome."""
    promise = {"step_us": promised_us, "low_us": promised_us, "high_us": promised_us, "baselines_us": {}}
    body = {"ests": [sorted(part) for part in ests], "devices": [], "compute_us": 1.0, "ests_below": 0}
    part = {
        "applies": "live",
        "changes_bits": False,
        "evidence": {"run": "none", "replay_error_pct": None},
        "predicted": promise,
        "body": body,
    }
    plan = {
        "schema": "esprof.plan/1",
        "id": f"drawn-{version}",
        "version": version,
        "job": {"n_est": N_EST, "world": 2, "model_signature": None},
        "fallback": {"window": window},
        "parts": {"assignment": part},
    }
    return json.dumps(plan).encode()


def supervised(
    folder: Path, slots: Sequence[WorkerSlot], drive: Callable[[], None], *, world: int = 1, warm: bool = True
) -> None:
    """Run the job in these places while `drive` does to it what it likes, in a thread; then let it leave."""
    failures: list[BaseException] = []

    def driven() -> None:
        try:
            drive()
        except BaseException as error:  # noqa: BLE001  It is raised when the job has left.
            failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    env = {"GLOO_SOCKET_IFNAME": network.INTERFACE if slots[0].command else "lo"}
    # Here crashes follow each other faster than in any job that is worth to go on with.
    settings = SupervisorSettings(warm=warm, most_crashes=1_000)
    supervisor = Supervisor(slots, (*SCRIPT, str(folder)), folder / "launch", settings, env=env)
    thread = threading.Thread(target=driven)
    thread.start()
    code = supervisor.run(world)
    thread.join()
    if failures:
        raise failures[0]
    expect(code, "the launcher")


@contextmanager
def two_hosts() -> Iterator[Bed]:
    cores = len(os.sched_getaffinity(0)) * 0.4
    with hosts((cores, cores), (None, None)) as bed:
        yield bed


def _namespace(bed: Bed, index: int) -> tuple[str, ...]:
    """Enters a host's network alone: its CPU quota is not for this."""
    return "nsenter", f"--net={network.NAMESPACES / bed.hosts[index].name}", "--"


def moments(folder: Path) -> Moments:
    """What the job has noted, but for a line that is half written."""
    noted = []
    with suppress(FileNotFoundError):
        for line in (folder / "moments.jsonl").read_text().splitlines():
            with suppress(json.JSONDecodeError):
                noted.append(json.loads(line))
    return noted


def until(found: Callable[[], Any], what: str, ended: Callable[[], int | None] = lambda: None) -> Any:
    """What `found` gives once it is something. Raises SystemExit where it does not come, or a process has ended."""
    deadline = time.monotonic() + _COMES_S
    while not (come := found()):
        if ended() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come")
        time.sleep(0.05)
    return come


def until_steps(folder: Path, world: int, ended: Callable[[], int | None] = lambda: None) -> None:
    """Wait until the last steps that the job has made are of so many processes."""

    def made() -> bool:
        steps = [moment for moment in moments(folder) if moment["what"] == "step"][-_STEPS_BETWEEN:]
        return len(steps) == _STEPS_BETWEEN and all(step["world"] == world for step in steps)

    until(made, f"steps of {world} processes", ended)


def life_of(folder: Path, number: int, world: int) -> list[int]:
    """The processes of a life of the job, counted from 0, once all are made; none before that."""
    made = [moment["pid"] for moment in moments(folder) if moment["what"] == "made"]
    return made[number * world : (number + 1) * world] if len(made) >= (number + 1) * world else []


def changes_of(folder: Path) -> Iterator[tuple[int, int, dict[str, float]]]:
    """(processes before, processes after, seconds by phase) of each change, by what rank 0 has noted, and when the job's
    history says that it had left."""
    of_zero = [moment for moment in moments(folder) if moment["rank"] == 0 and moment["what"] in ("made", "step")]
    left_ns = [event.time_ns for event in HISTORY.read(folder / "run") if event.what == "left"]
    for last, moment, first in zip(of_zero, of_zero[1:], of_zero[2:], strict=False):
        if (last["what"], moment["what"], first["what"]) != ("step", "made", "step"):
            continue
        saved_ns = max(ns for ns in left_ns if ns <= moment["ns"])
        was_warm = moment["started_ns"] < saved_ns
        began_ns = moment["script_ns"] if was_warm else moment["started_ns"]
        ends = [last["ns"], saved_ns, began_ns, moment["imported_ns"], moment["group_ns"], moment["ns"], first["ns"]]
        took = [(after - before) / 1e9 for before, after in pairwise(ends)]
        yield last["world"], first["world"], dict(zip(PHASES, took, strict=True))


def report(way: str, folder: Path, changes: int) -> None:
    found = list(changes_of(folder))
    for direction, worlds in (("out", (1, 2)), ("in", (2, 1))):
        phases = [took for before, after, took in found if (before, after) == worlds]
        whole = [sum(took.values()) for took in phases]
        if not whole:
            raise SystemExit(f"{way} has made no change {direction}")
        by_phase = {name: round(median(took[name] for took in phases), 3) for name in PHASES}
        context = {"way": way, "direction": direction, "changes": len(whole), "asked": changes}
        context |= {"min": round(min(whole), 2), "max": round(max(whole), 2), "phases": by_phase} | machine()
        show("downtime_s", median(whole), "s", context)
    tell_equal(way, folder, {"changes": len(found)} | machine())


def tell_equal(way: str, folder: Path, context: dict[str, Any]) -> None:
    """Train the same on one process without a stop, and compare the hashes of all steps."""
    # The last made, not the highest: after a kill steps are made again, and the hashes are those of these.
    last = [moment["step"] for moment in moments(folder) if moment["what"] == "step"][-1]
    static = folder / "static"
    static.mkdir()
    words = ["-m", "benchmarks.jobs.scaled", static, "--pause", 0, "--until", last + 1]
    subprocess.run([sys.executable, *map(str, words)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found = diff(folder / "hashes.jsonl", static / "hashes.jsonl")
    same = found.outcome == "equal" and found.steps_equal == last + 1
    show("equal", float(same), "1 is yes", {"way": way, "steps": found.steps_equal, "outcome": found.outcome} | context)
    if not same:
        raise SystemExit(f"{way}: the bits differ: {found}")


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1)}


def expect(code: int, whose: str) -> None:
    if code != 0:
        raise SystemExit(f"{whose} ended with {code}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a launcher end, by force where it does not: torchrun has workers, which it ends itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
