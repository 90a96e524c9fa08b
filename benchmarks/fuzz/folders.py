"""Valid inputs that esprof itself writes: Run directories, launch folders, step logs, checkpoints, baselines."""

import json
from pathlib import Path

import msgspec
import numpy as np

from esprof.analyzers.gate.baseline import Baseline, RunIdentity
from esprof.core.plan import DeviceCost, PlanStatus, write_plan
from esprof.elastic.launch import messages
from esprof.elastic.verify.steplog import Digest, Fingerprint, Header, StepLine
from esprof.reports.live.proposal import LatestSearch, write_search
from esprof.run import files, request
from esprof.run.directory import write_flight, write_probes
from esprof.run.logs import HISTORY, LEDGER, ROUNDS, JobEvent, Round, Setting
from tests.cases import execution, flight, kineto, ledger, live, probed
from tests.cases import raw as raw_files
from tests.cases.elastic_runs import elastic_run
from tests.cases.plans import plan_of
from tests.cases.run_directory import write_run

PLAN = plan_of(((0, 1, 2), (3,)), workers=2, every=5)
_COSTS = tuple(
    DeviceCost(rank=rank, kind="cpu", est_us=us, last_us=us, update_us=0.0, est_from="measured")
    for rank, us in enumerate((10.0, 35.0))
)
_OPTIMUM = {"devices": _COSTS, "compute_us": 35.0, "ests_below": 3}


def run(folder: Path) -> None:
    """A Run with every file that an elastic job, `serve`, `tune`, `verify` and `probe` write."""
    path = folder / "run"
    whole = elastic_run([[0, 1], [2, 3]], [5_000, 9_000], steps=4)
    write_run(
        path, whole.meta, {(name, rank): whole.recorded(name, rank) for name in ("events", "steps") for rank in (0, 1)}
    )
    write_flight(path, 0, flight.killed(flight.snapshot(0, [flight.call(1), flight.call(2, over=False)])))
    write_probes(path, probed.probes(*probed.slowing(1.0, 0.5)))
    was = Setting(ests=((0, 1), (2, 3)), codec="none")
    for step in range(3):
        HISTORY.append(path, JobEvent(what="adopted", step=step, plan="p", version=step, was=was, reason="why"))
        ROUNDS.append(
            path, Round(round=step, kind="assignment", step=step, outcome="kept", counts=(3, 1), gain_pct=2.0)
        )
    prediction = ledger.predicted("gpu=2x")
    LEDGER.append(path, prediction)
    LEDGER.append(path, ledger.outcome_of(prediction))
    live.write_steps(path, [live.live_step(step) for step in range(4)])
    request.ask(path, request.TelemetryRequest(since=3, ests=(((0, 1), (2, 3)),)))
    write_search(path, LatestSearch(proposal=live.proposal_of()))
    write_plan(path / files.PLAN, PLAN)
    status = PlanStatus(state="adopted", plan="p", version=1, newest=1, step=3, before_us=1.0)
    files.status_path(path / files.PLAN).write_bytes(msgspec.json.encode(status))


def execution_trace(folder: Path) -> None:
    """An execution trace, and the Kineto trace of the same steps."""
    shaped = [("Tensor(float)", [4, 8]), ("GenericList[Int,Int]", [[], []]), ("Int", [])]
    group = {"pg_name": "3", "collective_name": "allreduce", "in_msg_nelems": 500, "out_msg_nelems": 500}
    nodes = [execution.node(10, "aten::mm", shaped), execution.node(11, "record_param_comms", shaped[:1], **group)]
    rows = [
        kineto.step(1, 0, 1000),
        kineto.row("aten::mm", 10, 50, function=10),
        kineto.comms(200, dur=60, function=11),
    ]
    kineto.write(folder / "et.json", execution.execution_trace(*nodes))
    kineto.write(folder / "rank0.json", kineto.document(*rows, rank=0, world=4, groups=[kineto.group("3", [0, 2])]))


def raw(folder: Path) -> None:
    """The folder of a job whose launcher was killed."""
    raw_files.shaped_rank(raw_files.make(folder / "run", stack_steps=2, shapes=True), 8, 8)


def proven_plan(folder: Path) -> None:
    """A plan whose assignment is the best."""
    part = PLAN.parts.assignment
    assert part is not None
    body = msgspec.structs.replace(part.body, **_OPTIMUM)
    parts = msgspec.structs.replace(PLAN.parts, assignment=msgspec.structs.replace(part, body=body))
    write_plan(folder / "plan.json", msgspec.structs.replace(PLAN, parts=parts))


def launch(folder: Path) -> None:
    """What a launcher and its workers tell each other."""
    here = messages.Launch(folder=str(folder))
    messages.write_left(here, messages.Left(step=3, world=2, reason="asked", asked=True, stopped_ns=5))
    messages.write_state(folder, messages.LaunchState(pid=1, generation=0, world=2, most=3))
    messages.want(folder, 2)
    messages.LAUNCH_LOG.append(folder, messages.Logged(what="began", time_ns=1, generation=0, world=2))


def step_logs(folder: Path) -> None:
    """Two equal step logs."""
    digest = Digest("float32", (2, 3), "ab" * 32)
    for name in ("a", "b"):
        lines = [Header(Fingerprint("D1", {"n_est": 4, "seed": 0}, {"torch": "2.13.0"}, {}))]
        steps = [
            StepLine(
                step,
                0,
                ((0.5).hex(), (0.25).hex()),
                False,
                "cd" * 32,
                ((0, 1),),
                "none",
                {"w": digest, "state": digest},
            )
            for step in range(3)
        ]
        (folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in [*lines, *steps]))


def checkpoint(folder: Path) -> None:
    """A checkpoint of two tensors, as of one process."""
    import torch  # Only checkpoints need it.

    from esprof.elastic.checkpoint import checkpoint as checkpoints
    from esprof.elastic.checkpoint import dcp

    dcp.write(folder, {"shared/model/w": torch.zeros(3), "est/0/rng": torch.ones(2, dtype=torch.uint8)}, None)
    hashes = {path.name: checkpoints.FileHash(*checkpoints._hash(path)) for path in folder.iterdir()}
    manifest = checkpoints.Manifest(4, Fingerprint("D1", {"n_est": 4}, {"torch": "2.13.0"}, {}), hashes)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def read_checkpoint(folder: Path) -> None:
    from esprof.elastic.checkpoint import checkpoint as checkpoints

    checkpoints.verify(folder, checkpoints.read_manifest(folder))


def read_tensors(folder: Path) -> None:
    from esprof.elastic.checkpoint import checkpoint as checkpoints

    checkpoints.read(folder, lambda _: True)


def baseline(folder: Path) -> None:
    """A baseline of one run."""
    times = tuple(np.linspace(1e6, 2e6, 12).tolist())
    identity = RunIdentity(world_size=2, hosts=1, devices={0: "CPU", 1: None}, versions={"torch": "2.13.0"})
    content = Baseline(command=("train.py",), identity=identity, phase="plain", samples={"step_time": times})
    (folder / "baseline.json").write_bytes(msgspec.json.encode(content))


def instance(folder: Path) -> None:
    """An instance of gradient compression, with its costs."""
    tensors = [{"name": "w", "numel": 1000}, {"name": "v", "numel": 5_000_000}]
    content = {"model": "mine", "tensors": tensors, "ready_gap_us": [0, 1500], "compressor": "fast", "options": [0, 2]}
    channel = {"alpha_us": 10, "beta1_us_per_kB": {"pcie": 0.4}, "beta2_us_per_kB": 0.8, "nodes": 2, "gpus_per_node": 2}
    fast = {"total_us": [0, 1, 2, 3], "decode_us": [0, 0.5, 1, 1], "wire_ratio": 0.1}
    costs = {"base_elements": 1 << 20, "gpu_compression": {"fast": fast}, "communication": channel}
    (folder / "mine.json").write_text(json.dumps(content))
    (folder / "compression_costs.json").write_text(json.dumps(costs))


def devices(folder: Path) -> None:
    """Servers for parallel plans."""
    (folder / "devices.yaml").write_text(
        "devices: {V100: {count: 4, memory_gb: 16}, P100: 2}\nnetwork_gb_per_s: 1.25\nserver_gb_per_s: 25\nper_server: 4\n"
    )
