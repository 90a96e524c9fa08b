"""What is fuzzed: for each format that esprof reads, how to make a valid folder, and how esprof reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import folders, inputs
from esprof import load
from esprof.analyzers.advisors.cluster.gavel import with_throughputs
from esprof.analyzers.advisors.cluster.mix import SharingJob, read, read_mix
from esprof.analyzers.advisors.compression import instance
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.analyzers.advisors.parallel.mixed.files import MixedFiles
from esprof.analyzers.advisors.parallel.model import read_model
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.analyzers.comparison.evaluations import read_evaluations
from esprof.analyzers.comparison.to_target import compare_to_target
from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.gate import baseline
from esprof.analyzers.jobs.read import read_log
from esprof.analyzers.jobs.study import study
from esprof.core.plan import read_plan, status_of
from esprof.elastic.launch import messages
from esprof.elastic.verify.diff import diff
from esprof.reports.commands.proofs import check_file
from esprof.reports.live.proposal import read_search
from esprof.run import request
from esprof.run.logs import HISTORY, LEDGER, ROUNDS, Tail
from tests.cases import chakra, databases, flight_dumps, mixed, operation_tables, xplane


@dataclass(frozen=True, kw_only=True)
class Target:
    """One kind of input."""

    make: Callable[[Path], object]
    """Write a valid input to a folder."""
    files: tuple[str, ...]
    """The files of it that are changed, one at a time."""
    read: Callable[[Path], object]
    """Read the folder as esprof does. Raises EsprofError for an input that esprof refuses."""
    share: int = 10
    """Its part of all inputs, relative to that of other targets; slow ones have less."""
    is_shared: bool = False
    """Whether other processes write to the folder, so that anything may have the name of a file."""
    is_used_up: bool = False
    """Whether reading changes the folder."""


_TRANSFORMER = (
    '{"schema": "esprof.transformer/1", "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}'
)
_GAVEL = {"A": {"('W', 2)": {"null": 3.0, "('W', 2)": [0.9, 0.8], "('V', 1)": [1, 1]}}}
_JOB = SharingJob(id="a", workload="W", scale_factor=2, throughput_steps_per_s={})

TARGETS: dict[str, Target] = {
    # Run directories, and what processes that share one write to it.
    "run.json": Target(make=folders.run, files=("run/run.json",), read=inputs.read_whole, share=20, is_shared=True),
    "tables": Target(
        make=folders.run,
        files=("run/events/rank-00000.parquet", "run/steps/rank-00001.parquet"),
        read=inputs.read_whole,
        share=10,
        is_shared=True,
    ),
    "side files": Target(
        make=folders.run,
        files=("run/probes.json", "run/flight/rank-00000.json", "run/history.jsonl", "run/rounds.jsonl"),
        read=inputs.read_whole,
        share=20,
        is_shared=True,
    ),
    "diagnosis": Target(
        make=folders.run, files=("run/run.json",), read=lambda folder: diagnose(load(folder / "run")), share=1
    ),
    "raw": Target(
        make=folders.raw,
        files=tuple(
            f"run/raw/{name}"
            for name in (
                "job.json",
                "settings.json",
                "rank-00000.jsonl",
                "rank-00000.roll.0.jsonl",
                "rank-00000.timed.3.json",
                "rank-00000.stack.7.json",
            )
        ),
        read=inputs.read_whole,
        share=5,
        is_shared=True,
        is_used_up=True,
    ),
    "history": Target(
        make=folders.run, files=("run/history.jsonl",), read=lambda f: HISTORY.read(f / "run"), share=40, is_shared=True
    ),
    "rounds": Target(
        make=folders.run, files=("run/rounds.jsonl",), read=lambda f: ROUNDS.read(f / "run"), share=40, is_shared=True
    ),
    "ledger": Target(
        make=folders.run, files=("run/ledger.jsonl",), read=lambda f: LEDGER.read(f / "run"), share=40, is_shared=True
    ),
    "live": Target(
        make=folders.run, files=("run/live.jsonl",), read=lambda f: Tail(f / "run").read(), share=40, is_shared=True
    ),
    "request": Target(
        make=folders.run,
        files=("run/telemetry.request",),
        read=lambda f: request.waiting(f / "run"),
        share=40,
        is_shared=True,
    ),
    "advice": Target(
        make=folders.run,
        files=("run/advice.json",),
        read=lambda f: read_search(f / "run" / "advice.json"),
        share=40,
        is_shared=True,
    ),
    "plan": Target(
        make=folders.run, files=("run/plan.json",), read=lambda f: read_plan(f / "run" / "plan.json"), share=40
    ),
    "plan status": Target(
        make=folders.run,
        files=("run/plan.status.json",),
        read=lambda f: status_of((f / "run" / "plan.status.json").read_bytes()),
        share=40,
    ),
    "launch": Target(
        make=folders.launch,
        files=("left-0.json", "launch.json", "world", "launch.jsonl"),
        read=lambda f: (
            messages.read_left(f, 0),
            messages.read_state(f),
            messages.wanted(f),
            messages.LAUNCH_LOG.read(f),
        ),
        share=40,
        is_shared=True,
    ),
    "step log": Target(
        make=folders.step_logs, files=("a.jsonl",), read=lambda f: diff(f / "a.jsonl", f / "b.jsonl"), share=40
    ),
    "manifest": Target(
        make=folders.checkpoint, files=("manifest.json",), read=folders.read_checkpoint, share=40, is_shared=True
    ),
    "metadata": Target(
        make=folders.checkpoint, files=(".metadata", "__0_0.distcp"), read=folders.read_tensors, share=10
    ),
    # Traces of other tools.
    "kineto": Target(make=inputs.kineto_traces, files=("trace.json",), read=inputs.read_events("trace.json"), share=20),
    "kineto, gzip": Target(
        make=inputs.kineto_traces, files=("trace.json.gz",), read=inputs.read_events("trace.json.gz"), share=10
    ),
    "archives": Target(make=inputs.archives, files=("traces.zip", "traces.tgz"), read=inputs.read_archives, share=5),
    "flight recorder": Target(
        make=lambda f: (
            flight_dumps.write(f, flight_dumps.hung()),
            flight_dumps.write(f, {0: flight_dumps.dump(flight_dumps.entry(1))}, as_json=True),
        ),
        files=("nccl_trace_rank_0", "fr_rank0.json"),
        read=lambda f: (load(f / "nccl_trace_rank_0"), load(f / "fr_rank0.json")),
        share=20,
    ),
    "chakra": Target(
        make=lambda f: (f / "job.0.et").write_bytes(chakra.job(0)),
        files=("job.0.et",),
        read=inputs.read_events("job.0.et"),
        share=10,
    ),
    "execution trace": Target(
        make=folders.execution_trace,
        files=("et.json", "rank0.json"),
        read=inputs.read_joined,
        share=10,
    ),
    "xplane": Target(
        make=lambda f: (f / "node.xplane.pb").write_bytes(xplane.gpu_job(1)),
        files=("node.xplane.pb",),
        read=inputs.read_events("node.xplane.pb"),
        share=5,
    ),
    "nsight": Target(
        make=lambda f: databases.write_nsight(f / "a.sqlite"),
        files=("a.sqlite",),
        read=inputs.read_events("a.sqlite"),
        share=3,
    ),
    "rocpd": Target(
        make=lambda f: databases.write_rocpd(f / "a.db"), files=("a.db",), read=inputs.read_events("a.db"), share=3
    ),
    "rocprof": Target(
        make=lambda f: databases.write_rocprof_json(f / "a.json"),
        files=("a.json",),
        read=inputs.read_events("a.json"),
        share=10,
    ),
    "rocprof, Chrome": Target(
        make=lambda f: databases.write_rocprof_chrome(f / "a.json"),
        files=("a.json",),
        read=inputs.read_events("a.json"),
        share=10,
    ),
    "operation table": Target(
        make=lambda f: operation_tables.write_table(f / "a.parquet", operation_tables.rows_of_a_job(2, 3)),
        files=("a.parquet",),
        read=inputs.read_events("a.parquet"),
        share=5,
    ),
    # Files that a user writes, or has from others.
    "inventory": Target(
        make=inputs.example("advisors.md", "`--inventory` names", "gpus.yaml"),
        files=("gpus.yaml",),
        read=lambda f: read(f / "gpus.yaml", Inventory),
        share=20,
    ),
    "jobs": Target(
        make=inputs.example("advisors.md", "`--jobs` names", "jobs.yaml"),
        files=("jobs.yaml",),
        read=lambda f: read_mix(f / "jobs.yaml"),
        share=10,
    ),
    "job logs": Target(
        make=inputs.written(
            philly__json=[
                {
                    "status": "Pass",
                    "attempts": [
                        {"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": [{"gpus": ["gpu0"]}]}
                    ],
                    "submitted_time": "2017-10-07 01:11:39",
                }
            ],
            helios__csv="job_id,vc,gpu_num,submit_time,start_time\n1,a,8,2020-04-01 00:00:00,2020-04-01 00:01:00\n",
        ),
        files=("philly.json", "helios.csv"),
        read=lambda f: [study(read_log(f / name), {1: 4.0, 8: 1.0}) for name in ("philly.json", "helios.csv")],
        share=10,
    ),
    "evaluations": Target(
        make=inputs.written(a__csv="step,time,loss\n1,2.0,3.5\n2,4.0,2.5\n", b__jsonl='{"step": 1, "loss": 3.5}\n'),
        files=("a.csv", "b.jsonl"),
        read=lambda f: compare_to_target(*([read_evaluations(f / name, {})] for name in ("a.csv", "b.jsonl")), 3.0),
        share=10,
    ),
    "sizes": Target(make=inputs.questions, files=("sizes.yaml",), read=inputs.read_question("sizes"), share=2),
    "slices": Target(make=inputs.questions, files=("slices.yaml",), read=inputs.read_question("slices"), share=2),
    "reclaim": Target(make=inputs.questions, files=("reclaim.yaml",), read=inputs.read_question("reclaim"), share=2),
    "proposals": Target(
        make=inputs.questions, files=("proposals.yaml",), read=inputs.read_question("proposals"), share=2
    ),
    "prices": Target(
        make=inputs.questions,
        files=("spot.yaml", "monday.csv", "tuesday.csv"),
        read=inputs.read_question("spot"),
        share=2,
    ),
    "throughputs": Target(
        make=inputs.written(gavel__json=_GAVEL),
        files=("gavel.json",),
        read=lambda f: with_throughputs((_JOB,), f / "gavel.json"),
        share=40,
    ),
    "layers": Target(
        make=inputs.example("parallel.md", "#", "layers.json"),
        files=("layers.json",),
        read=lambda f: read_model([f / "layers.json"]),
        share=20,
    ),
    "transformer": Target(
        make=inputs.written(gpt__json=_TRANSFORMER),
        files=("gpt.json",),
        read=lambda f: read_model([f / "gpt.json"]),
        share=20,
    ),
    "devices": Target(
        make=folders.devices,
        files=("devices.yaml",),
        read=lambda f: read(f / "devices.yaml", Devices).fault(),
        share=20,
    ),
    "published plans": Target(
        make=lambda f: mixed.written(
            f,
            times=mixed.published_times(A=1.0),
            sizes=mixed.published_sizes(),
            plan=mixed.published_plan(([0, 1], [("A", 1)]), ([2, 3], [("A", 1)])),
        ),
        files=("times.json", "sizes.json", "plan.json"),
        read=lambda f: MixedFiles([f / "times.json", f / "sizes.json", f / "plan.json"]).profile(None, {"A"}),
        share=20,
    ),
    "compression": Target(
        make=folders.instance,
        files=("mine.json", "compression_costs.json"),
        read=lambda f: instance.load(f / "mine.json"),
        share=20,
    ),
    "baseline": Target(
        make=folders.baseline,
        files=("baseline.json",),
        read=lambda f: baseline.decode((f / "baseline.json").read_bytes(), f / "baseline.json"),
        share=40,
    ),
    "advice to check": Target(
        make=folders.proven_plan,
        files=("plan.json",),
        read=lambda f: check_file(f / "plan.json"),
        share=5,
    ),
    "pyproject.toml": Target(
        make=inputs.written(
            pyproject__toml='[[tool.esprof.ignore]]\nid = "ESP301"\nreason = "known"\nuntil = 2099-01-01\n[tool.ruff]\nx=1\n'
        ),
        files=("pyproject.toml",),
        read=inputs.read_ignore_list,
        share=40,
    ),
}
"""By name."""
