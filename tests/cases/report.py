"""Reports built by hand: a four-rank job whose rank 1 is starved by its loader, at the size and shape of a real one."""

from datetime import date
from functools import cache
from typing import get_args

import msgspec

from esprof.analyzers.advisors.recommend import Kind, Recommendations, Wanted, recommend
from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import Diagnosis, Finding, Ignored, RankBreakdown, Throughput
from esprof.analyzers.ops.answer import Attention, CallSite, CollectiveRate, Kernel, Op, OpsAnswer, RankOp, Shapes
from esprof.analyzers.samples.flame import Flame, FlameNode, FlameTree, LineShare
from esprof.analyzers.steps.step_times import ROLES, FindingMark, Series, StepTimes
from esprof.analyzers.summary.arrival_map import ArrivalMap, ArrivalRow
from esprof.analyzers.summary.explorer import Axis, Cell, Explorer, Grid
from esprof.analyzers.summary.job_proof import JobProof
from esprof.analyzers.summary.loader_workers import InputStages, WorkerPart, WorkerUse
from esprof.analyzers.summary.report import Report
from esprof.analyzers.summary.timeline_excerpt import WAITS, Arrow, Bar, Excerpt
from esprof.analyzers.views.links import LinkPeak
from esprof.analyzers.views.memory_use import MemoryCurve, MemoryUse, RankMemory
from esprof.analyzers.views.probed import probed
from esprof.analyzers.views.unrecorded import Unrecorded
from esprof.core.plan import Plan, PlannedJob, PlanParts
from esprof.replay.answer import (
    Coverage,
    CriticalPath,
    GraphSize,
    HeldOut,
    Prediction,
    RankShare,
    ReplayAnswer,
    StepLeftOut,
    StepTime,
    Timing,
    WhatIf,
)
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.memory.peak import PeakMemory
from esprof.reports.charts import Figure, all_figures
from esprof.run.logs import JobEvent, Round
from esprof.run.overhead import Overhead
from esprof.run.probes import Sweep
from esprof.run.run import RankMeta, RunWarning, Window
from tests.cases.compression import MIB, exchange
from tests.cases.elastic_runs import elastic_run
from tests.cases.gloo_buckets import run_with
from tests.cases.loading import loading_job
from tests.cases.probed import link, points, probes
from tests.cases.saving_runs import job_that_saves

HOSTILE = (
    "<script>alert(1)</script>%{x}{{7*7}}[bold]<a href='https://example.com'>"
    "\x1b[31mred\x1b[0m<img src=x onerror=alert(2)>\u202e</b>\n::error::fake"
)
"""A name that tries every renderer at once: HTML, ANSI, rich markup, template, plotly, CI annotation, direction."""

STEP_US = 120_300.0
UNPROFILED_US = 115_500.0
WARNINGS = (
    RunWarning("clock-unaligned", "clocks were not aligned; times across hosts are good to about 1 ms"),
    RunWarning("rank-unreadable", "rank 3: its events cannot be read (Couldn't deserialize thrift)", (3,)),
)


def breakdown(ranks=4, starved=1):
    """Rank `starved` waits for data, the others wait for it; the categories of each rank sum to the step."""
    return tuple(_breakdown_of(rank, rank == starved) for rank in range(ranks))


def _breakdown_of(rank, starved):
    lost = {"input_stall": 41_200.0, "wait": 1_900.0} if starved else {"input_stall": 600.0, "wait": 42_500.0}
    rest = {"compute": 61_400.0, "exposed_communication": 7_250.0, "copy": 350.0, "host": 6_050.0}
    idle = STEP_US - sum(lost.values()) - sum(rest.values())
    device, host = "NVIDIA A100-SXM4-80GB", f"node{rank // 4:02d}"
    parts = {**lost, **rest, "idle": idle}
    return RankBreakdown(rank=rank, device=device, host_name=host, step_us=STEP_US, overlap_pct=62.5, **parts)


def findings(ranks=4):
    return (
        Finding(
            id="ESP101",
            title="Rank 1 waits for its data loader",
            severity="critical",
            ranks=(1,),
            saving_us=40_900.0,
            saving_low_us=0.9 * 40_900.0,
            saving_high_us=1.1 * 40_900.0,
            saving_pct=34.0,
            saving_device_hours_per_day=8.16 * ranks,
            confidence="high",
            evidence={
                "input_stall": by_rank({0: 600_000, 1: 41_200_000, 2: 600_000, 3: 600_000}, "ns"),
                "share_of_step": Evidence(0.342, "share"),
                "loader_workers": Evidence(0),
                "prefetch": Evidence(None),
            },
            advice="Rank 1 makes its batches in the training process itself.\nGive its DataLoader num_workers=4.",
            command="esprof replay RUN --what-if data=0",
        ),
        Finding(
            id="ESP201",
            title="Every rank waits for rank 1",
            severity="warning",
            ranks=(1,),
            saving_us=38_100.0,
            saving_low_us=0.9 * 38_100.0,
            saving_high_us=1.1 * 38_100.0,
            saving_pct=31.7,
            saving_device_hours_per_day=7.6 * ranks,
            confidence="medium",
            evidence={
                "arrived_last": by_rank({1: 1_167}),
                "collectives": Evidence(1_240),
                "saving": Evidence({"slower compute": 38_100_000}, "ns", "cause"),
            },
            advice="Rank 1 arrived last at 94.1 % of the collectives. ESP101 says why: mend that first.",
            command="esprof explain ESP201",
        ),
        Finding(
            id="ESP301",
            title="All-reduce is not hidden behind compute",
            severity="info",
            ranks=tuple(range(ranks)),
            saving_us=3_400.0,
            saving_low_us=0.9 * 3_400.0,
            saving_high_us=1.1 * 3_400.0,
            saving_pct=2.8,
            saving_device_hours_per_day=0.67 * ranks,
            confidence="low",
            evidence={
                "exposed": by_rank(dict.fromkeys(range(ranks), 7250000), "ns"),
                "sent_per_step_and_rank": Evidence(498_000_000, "bytes"),
                "bandwidth": Evidence(25 << 20, "bytes/s"),
            },
            advice="The last bucket leaves after the backward pass is done.",
        ),
    )


def diagnosis(ranks=4, found=None, warnings=WARNINGS):
    return Diagnosis(
        verdict="Rank 1 waits 41.2 ms of each 120.3 ms step for its data loader, and the other ranks wait for rank 1.",
        findings=findings(ranks) if found is None else found,
        joint_saving_us=sum(finding.saving_us for finding in (findings(ranks) if found is None else found)),
        step_us=STEP_US,
        scatter_pct=0.6,
        unprofiled_step_us=UNPROFILED_US,
        overhead=Overhead(pct=4.2, low_pct=2.6, high_pct=5.9),
        steps=(11, 12, 13, 14),
        world_size=ranks,
        missing_ranks=(),
        breakdown=breakdown(ranks),
        throughput=Throughput(steps_per_s=8.31, samples_per_s=1_064.0, tokens_per_s=None),
        explained_pct=97.1,
        replay_error_pct=0.84,
        warnings=warnings,
    )


def ignoring(diagnosis):
    """The diagnosis with its last finding ignored."""
    *rest, last = diagnosis.findings
    ignored = Ignored(finding=last, reason="the link is upgraded in May", until=date(2027, 5, 31))
    return msgspec.structs.replace(diagnosis, findings=tuple(rest), ignored=(ignored,))


def what_ifs():
    answered = (
        ("data=0", 79_400.0, 78_100.0, 81_000.0, None),
        ("gpu=2x", 98_700.0, 96_900.0, 101_200.0, None),
        ("network=2x", 116_900.0, 116_200.0, 117_800.0, None),
        ("cpu=2x", 112_050.0, 110_400.0, 114_000.0, "host gaps scale with the CPU"),
        ("straggler=fix", 82_200.0, 80_000.0, 84_900.0, "96.2 % of the time has a counterpart"),
    )
    declined = ("storage=2x", "the run has no record of where a fetch spends its time")
    return (
        *(
            WhatIf(
                spec=spec,
                answered=True,
                predicted_us=us,
                speedup=STEP_US / us,
                low_us=low,
                high_us=high,
                saving_us=STEP_US - us,
                saving_low_us=STEP_US - us - 700.0,
                saving_high_us=STEP_US - us + 700.0,
                note=note,
            )
            for spec, us, low, high, note in answered
        ),
        WhatIf(spec=declined[0], answered=False, reason=declined[1]),
    )


def peak(rank):
    parts = {"parameters": 2 << 30, "gradients": 2 << 30, "optimizer": 4 << 30, "activations": (21 + rank) << 30}
    return PeakMemory(
        rank=rank,
        on_gpu=True,
        peak=sum(parts.values()),
        limit=80 << 30,
        fits=True,
        **parts,
        temporary=0,
        buffers=0,
        buckets=0,
        other=0,
    )


def replay(ranks=4, scenarios=None, warnings=WARNINGS):
    classes = {
        "compute": 246_000.0,
        "communication": 29_000.0,
        "wait": 0.0,
        "cpu": 19_400.0,
        "host_gap": 9_100.0,
        "data": 163_000.0,
        "launch": 1_100.0,
        "allocator": 0.0,
        "contention": 2_600.0,
        "residual": 11_000.0,
    }
    span = sum(classes.values())
    shares = [0.72, *[0.28 / (ranks - 1)] * (ranks - 1)] if ranks > 1 else [1.0]
    return ReplayAnswer(
        world_size=ranks,
        steps=tuple(
            StepTime(step=step, measured_us=us, replayed_us=us * (1 + error / 100), error_pct=error)
            for step, us, error in (
                (11, 119_800.0, 0.0),
                (12, 120_900.0, -0.12),
                (13, 120_400.0, 0.84),
                (14, 120_100.0, 0.02),
            )
        ),
        left_out=(StepLeftOut(step=10, measured_us=388_200.0, reason="the window's first step"),),
        step_us=STEP_US,
        scatter_pct=0.6,
        unprofiled_step_us=UNPROFILED_US,
        overhead=Overhead(pct=4.2, low_pct=2.6, high_pct=5.9),
        strict_error_pct=-1.9,
        known_error_pct=1.9,
        explained_pct=97.1,
        prediction=Prediction(
            fit_steps=(11, 12, 13),
            held_out=(HeldOut(step=14, measured_us=120_100.0, predicted_us=121_300.0, error_pct=1.0),),
        ),
        critical_path=CriticalPath(
            span_us=span,
            classes=classes,
            by_rank=tuple(
                RankShare(rank=(rank + 1) % ranks, us=share * span, pct=100 * share)
                for rank, share in enumerate(shares)
            ),
        ),
        what_if=what_ifs() if scenarios is None else scenarios,
        coverage=Coverage(
            collectives=4_960,
            collectives_matched=4_958,
            collectives_partial=0,
            p2p=0,
            p2p_matched=0,
            kernels=18_200,
            kernels_without_launch=3,
            launches_without_kernel=0,
            waits=1_311,
            waits_recorded=1_240,
            waits_inferred=58,
            waits_rejected=0,
            collectives_ended_early=0,
            unmatched_by_rank={3: 2},
            edges_dropped=0,
            lags_clamped=0,
            missing_ranks=(),
        ),
        clocks=(),
        graph=GraphSize(nodes=84_211, edges=112_908),
        timing_s=Timing(read=0.61, build=0.44, replay=0.02),
        memory=tuple(peak(rank) for rank in range(ranks)),
        warnings=warnings,
    )


_PATTERN = (
    ("DataLoader.next", "data", 0.0, 40.0),
    ("aten::linear", "cpu", 41.0, 14.0),
    ("python", "host_gap", 55.5, 2.0),
    ("autograd::engine::evaluate_function", "cpu", 58.0, 24.0),
    ("Optimizer.step#AdamW.step", "cpu", 110.0, 8.0),
)
_DEVICE = (
    ("ampere_sgemm_128x64_tn", "compute", 42.0, 26.0),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "compute", 68.5, 33.0),
    ("cudaMalloc", "allocator", 101.6, 0.9),
    ("multi_tensor_apply_kernel", "compute", 111.0, 8.5),
)


def excerpt(ranks=4, steps=(11, 12), bars=None):
    drawn = tuple(_bars(ranks, steps)) if bars is None else bars
    main = {"rank": min(1, ranks - 1), "lane": "main thread"}
    path = (
        Bar(**main, start_us=0.0, dur_us=40_000.0, name="DataLoader.next", cls="data"),
        Bar(**main, start_us=40_000.0, dur_us=64_500.0, name="aten::linear", cls="cpu"),
        Bar(
            rank=0, lane="stream 20 (nccl)", start_us=104_500.0, dur_us=6_000.0, name="all_reduce", cls="communication"
        ),
    )
    waits = [rank for rank in range(ranks) if rank != 1 and ranks > 1]
    return Excerpt(
        steps=steps,
        span_us=STEP_US * len(steps),
        ranks=tuple(range(ranks)),
        of_ranks=ranks,
        bars=drawn,
        path=path,
        arrows=tuple(
            Arrow(
                name="all_reduce", at_us=104_500.0, late=1, late_lane="stream 20 (nccl)", rank=rank, waited_us=42_500.0
            )
            for rank in waits
        ),
        shown=len(drawn),
        total=21_052,
    )


def arrivals(ranks=4):
    """Three all-reduces, the last of part of the ranks: rank 1 comes last."""

    def row(late, size, members):
        return ArrivalRow(
            name="all_reduce",
            bytes=size,
            late_us=tuple((late if rank == 1 else 40.0 * rank) if rank in members else None for rank in range(ranks)),
            last=1,
            spread_us=late,
        )

    everybody = range(ranks)
    rows = (row(42_500.0, 25 << 20, everybody), row(300.0, 25 << 20, everybody), row(41_000.0, None, range(2)))
    return ArrivalMap(ranks=tuple(everybody), of_ranks=ranks, rows=rows, found=7, widest_us=42_500.0)


def explorer():
    """A grid of network speeds and input, and one of bucket sizes."""

    def cell(us):
        return Cell(us, 0.98 * us, 1.03 * us)

    speed, data = Axis(term="network", values=("1x", "2x", "4x"), now=0), Axis(term="data", values=("", "0"), now=0)
    buckets = Axis(term="bucket_mb", values=("as recorded", "5", "50"), now=0)
    now = Cell(STEP_US, STEP_US, STEP_US)
    together = (now, cell(79_400.0), cell(116_900.0), cell(76_000.0), cell(115_200.0), None)
    return Explorer(
        grids=(
            Grid(axes=(speed, data), cells=together),
            Grid(axes=(buckets,), cells=(now, cell(140_000.0), cell(119_000.0))),
        ),
        step_us=STEP_US,
        declined=(WhatIf(spec="gpu=2x", answered=False, reason="no GPU was recorded"),),
    )


def input_stages(ranks=4):
    """One worker a rank; that of rank 1 is always busy."""
    return InputStages(
        workers=tuple(
            WorkerUse(
                rank=rank,
                worker=0,
                batches=400,
                making_us=118_000.0 if rank == 1 else 31_000.0,
                cpu_us=90_000.0 if rank == 1 else 29_000.0,
                ready_us=1_000.0,
                blocked_us=27_000.0 if rank == 1 else 1_000.0,
                busy_pct=99.1 if rank == 1 else 25.8,
                parts=(WorkerPart("decode", 21_000.0), WorkerPart("collate", 4_000.0)),
            )
            for rank in range(ranks)
        ),
        found=ranks,
    )


def _bars(ranks, steps):
    for number, _ in enumerate(steps):
        for rank in range(ranks):
            late = 0.0 if rank == 1 else 40.0
            if rank != 1:
                yield Bar(
                    rank=rank, lane=WAITS, start_us=number * STEP_US + 62_000.0, dur_us=42_500.0,
                    name="wait for peers at all_reduce", cls="wait", cause="rank 1 arrived last",
                )  # fmt: skip
            for lane, pattern in (("main thread", _PATTERN), ("stream 7", _DEVICE)):
                for name, cls, start, dur in pattern:
                    short = 0.6 if cls == "data" and rank != 1 else dur
                    begin = number * STEP_US + (start if cls == "data" else start - late * (start < 100)) * 1e3
                    yield Bar(rank=rank, lane=lane, start_us=begin, dur_us=short * 1e3, name=name, cls=cls)
            begin = number * STEP_US + 104_500.0
            lane = "stream 20 (nccl)"
            yield Bar(rank=rank, lane=lane, start_us=begin, dur_us=6_000.0, name="all_reduce", cls="communication")


def steps(n=400):
    """Every twentieth step validates; one window from step 11 on; one hiccup; a further pass every 150 steps."""
    took = [STEP_US * (2.0 if step % 20 == 0 else 1.0) for step in range(n)]
    took[333] = 40 * STEP_US
    role = ["beside"] * 1 + ["plain"] * 9 + ["beside"] + ["timed"] * 4 + ["beside"] + ["plain"] * (n - 16)

    def series(which):
        chosen = [step for step in range(n) if which(step)]
        at_s = tuple(round(sum(took[:step]) / 1e6, 3) for step in chosen)
        return Series(step=tuple(chosen), us=tuple(took[step] for step in chosen), at_s=at_s, of=len(chosen))

    marks = (
        FindingMark(id="ESP806", title="One step in 20 is slow", steps=series(lambda step: step % 20 == 0)),
        FindingMark(id="ESP804", title="Step 333 stood still", steps=series(lambda step: step == 333)),
    )
    return StepTimes(
        series={of: series(lambda step, of=of: role[step] == of) for of in ("plain", "timed", "beside")},
        marks=marks,
        steps=n,
        stretch=1,
        span_s=sum(took) / 1e6,
        mean_us=1.15 * STEP_US,
        median_us=STEP_US,
        plain=role.count("plain"),
        top_us=2.5 * STEP_US,
        above=1,
        longest_us=max(took),
        windows=(Window(first=11, last=14),),
        window_count=1,
        passes=tuple(range(150, n, 150)),
        pass_count=len(range(150, n, 150)),
    )


def memory(ranks=4, curves=8, points=200):
    """Memory of each step peaks in the backward pass, on rank 1 higher than elsewhere."""
    peaks = [(31 << 30) + (rank == 1) * (2 << 30) for rank in range(ranks)]
    return MemoryUse(
        ranks=tuple(
            RankMemory(
                rank=rank,
                of="cuda",
                peak=peak,
                limit=80 << 30,
                reached="backward of step 12",
                forward=peak - (4 << 30),
                backward=peak,
                optimizer=12 << 30,
            )
            for rank, peak in enumerate(peaks)
        ),
        curves=tuple(
            MemoryCurve(
                rank=rank,
                at_s=tuple(0.12 * point for point in range(points)),
                used=tuple(peak - (point % 3) * (6 << 30) for point in range(points)),
                reserved=(peak + (3 << 30),) * points,
            )
            for rank, peak in enumerate(peaks[:curves])
        ),
        samples=40_000,
    )


_FUNCTIONS = (
    ("main", "train.py", "job", -1, 0.98, 0.9, ((88, 60.0), (91, 30.0))),
    ("train_step", "train.py", "job", 0, 0.7, 0.95, ((41, 55.0), (44, 45.0))),
    ("forward", "model/blocks.py", "job", 1, 0.4, 0.99, ((18, 100.0),)),
    ("linear", "python3.11/site-packages/torch/nn/functional.py", "torch", 2, 0.36, 1.0, ((134, 100.0),)),
    ("backward", "python3.11/site-packages/torch/_tensor.py", "torch", 1, 0.27, 0.2, ((648, 100.0),)),
    ("__next__", "python3.11/site-packages/torch/utils/data/dataloader.py", "torch", 0, 0.2, 0.1, ((733, 100.0),)),
    ("poll", "python3.11/selectors.py", "other", 5, 0.19, 0.0, ((415, 100.0),)),
    ("12 more", "", "other", 0, 0.04, 0.5, ()),
)


def flame(ranks=4, functions=_FUNCTIONS):
    """All ranks, and at most five of them by themselves."""
    return Flame(
        phase="stack",
        ranks=tuple(range(ranks)),
        trees=tuple(_flame_tree(rank, functions) for rank in ([None, *range(min(ranks, 5))] if ranks > 1 else [None])),
    )


def _flame_tree(rank, functions, us=2_400_000.0):
    return FlameTree(
        rank=rank,
        samples=2_400,
        us=us,
        cpu_us=0.61 * us,
        nodes=tuple(
            FlameNode(
                function=function,
                file=file,
                origin=origin,
                parent=parent,
                us=share * us,
                cpu_us=share * on_cpu * us,
                lines=tuple(LineShare(*line) for line in lines),
            )
            for function, file, origin, parent, share, on_cpu, lines in functions
        ),
    )


_OPERATIONS = (
    ("op", "aten::addmm", 48.0, 6_100.0, 8_300.0, 31_000.0, 31_000.0, "ampere_sgemm_128x64_tn"),
    (
        "op",
        "aten::mm",
        96.0,
        5_200.0,
        7_900.0,
        22_500.0,
        22_500.0,
        "void cutlass::Kernel2<cutlass_80_tensorop<4, 2>>(int)",
    ),
    ("annotation", "nccl:all_reduce", 12.0, 410.0, 600.0, 7_250.0, 7_250.0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ("module", "TransformerBlock_3", 1.0, 950.0, 14_000.0, 0.0, 29_900.0, None),
    ("runtime", "cudaStreamSynchronize", 2.0, 21_300.0, 21_300.0, 0.0, 0.0, None),
)


def operations(ranks=4, has_gpu=True):
    """Five operations; rank 1 has half as much communication."""
    return OpsAnswer(
        world_size=ranks,
        ranks=tuple(range(ranks)),
        missing_ranks=(),
        steps=(11, 12, 13, 14),
        step_us=STEP_US,
        has_gpu=has_gpu,
        sort="own-gpu" if has_gpu else "own-cpu",
        by="operation",
        by_shape=False,
        pattern=None,
        cpu_us=48_000.0,
        gpu_us=61_750.0 if has_gpu else 0.0,
        gpu_outside_us=1_000.0 if has_gpu else 0.0,
        utilisation=None,
        attention=(Attention(implementation="FlashAttention 2", kernels=24.0, us=6_200.0),) if has_gpu else (),
        collectives=(
            _rate(ranks, 24 << 20, 25 << 20, 9.0, 400, LinkPeak(bytes_per_s=300e9, source="data sheet")),
            _rate(ranks, 1 << 20, 1 << 20, 3.0, 60, None),
        )
        if has_gpu and ranks > 1
        else (),
        collectives_unknown=0.0,
        shapes_recorded=True,
        modules_recorded=True,
        found=311,
        ops=tuple(_operation(ranks, has_gpu, *row) for row in _OPERATIONS),
        warnings=(),
    )


def _rate(ranks, smallest, largest, calls, us, peak):
    rate = (smallest + largest) / 2 / us * 1e6
    return CollectiveRate(
        collective="all_reduce",
        ranks=tuple(range(ranks)),
        smallest=smallest,
        largest=largest,
        calls=calls,
        us=us,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate * 2 * (ranks - 1) / ranks,
        peak=peak,
        is_matched=peak is not None,
    )


def _operation(ranks, has_gpu, kind, name, calls, own_cpu, total_cpu, own_gpu, total_gpu, launches):
    times = {
        "own_cpu_us": own_cpu,
        "total_cpu_us": total_cpu,
        "own_gpu_us": own_gpu * has_gpu,
        "total_gpu_us": total_gpu * has_gpu,
    }
    late = name.startswith("nccl") and has_gpu and ranks > 1
    half = times | {"own_gpu_us": own_gpu / 2, "total_gpu_us": total_gpu / 2}
    return Op(
        name=name,
        kind=kind,
        shapes=None,
        calls=calls,
        **times,
        backward_cpu_us=2 * total_cpu if kind == "module" else 0.0,
        backward_gpu_us=2 * total_gpu * has_gpu if kind == "module" else 0.0,
        share_pct=100 * own_gpu / 61_750 if has_gpu else own_cpu / 480,
        differs=1 if late else None,
        by_rank=tuple(
            RankOp(rank=rank, calls=calls, **(half if late and rank == 1 else times)) for rank in range(ranks)
        ),
        kernels=(Kernel(name=launches, calls=calls, us=own_gpu),) if launches and has_gpu else (),
        kernels_found=3 if launches and has_gpu else 0,
        inputs=(Shapes(shapes="[[8, 64], [64, 32]]", calls=calls),),
        inputs_found=1,
        places=(CallSite(frame="model/blocks.py(41): forward", share_pct=88.0),) if kind == "op" else (),
    )


def rank_metas(ranks=4):
    return tuple(
        RankMeta(
            rank=rank,
            host=f"node{rank // 4:02d}",
            device="NVIDIA A100-SXM4-80GB",
            pid=4_000 + rank,
            clock_residual_ns=34_000,
            windows=(Window(first=10, last=14),),
            events=18_400 + rank,
            overhead=Overhead(pct=2.3, low_pct=-0.4, high_pct=4.1),
            peak_memory=31_400_000_000,
            peak_memory_of="cuda",
        )
        for rank in range(ranks)
    )


def probed_curves():
    """A link, a codec, its exchange and a disk, of two ranks that measured both."""
    alone = [
        Sweep(
            kind=kind,
            name=name,
            unit="bytes",
            ranks=(rank,),
            device="cuda",
            points=points((1 << 10, 1 << 16, 1 << 22), lambda size, rate=rate: 20_000 + size / rate),
        )
        for rank in (0, 1)
        for kind, name, rate in (
            ("encode", "fp16", 80),
            ("decode", "fp16", 90),
            ("exchange", "fp16", 2),
            ("save", "fsync", 1),
        )
    ]
    return probed(probes(link(40_000, 0.05), *alone))


def report(ranks=4, **replaced):
    """The whole report; any field of it may be given instead."""
    whole = Report(
        title="gpt-small on 4 ranks",
        source="runs/gpt-small",
        command=("torchrun", "--nproc-per-node", "4", "train.py", "--config", "gpt-small.toml"),
        esprof_version="0.1.0",
        versions={"python": "3.12.4", "torch": "2.13.0+cu126"},
        created_ns=1_767_225_600_000_000_000,
        ranks=rank_metas(ranks),
        diagnosis=diagnosis(ranks),
        replay=replay(ranks),
        charted_ranks=tuple(range(min(ranks, 32))),
        explorer=explorer(),
        steps=steps(),
        timeline=excerpt(ranks),
        arrivals=arrivals(min(ranks, 16)) if ranks > 1 else None,
        operations=operations(ranks),
        input=input_stages(min(ranks, 32)),
        flame=flame(ranks),
        memory=memory(ranks),
        probed=probed_curves(),
        advice=advice(),
        not_recorded=(
            Unrecorded(data="input shapes", needed_for="other bucket sizes", remedy="Record with --shapes."),
        ),
        history=history(),
        rounds=rounds(),
        proof=JobProof(proven=140, diverged=None),
    )
    return msgspec.structs.replace(whole, **replaced)


@cache
def advice():
    """Each kind of advice, of jobs made by hand: ESTs move, three buckets are compressed, the loader stays as it is."""
    compressed = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    compressed.probes = probes(link(0, 20e6 / MIB), *exchange("half", 0.5, 3, sent=MIB // 2))
    jobs = {
        "assignment": elastic_run([[0, 1, 2, 3], [4, 5, 6, 7]], (3_000, 9_000)),
        "compression": compressed,
        "loader": Replayed.of(loading_job(cpus=8), max_error_pct=100),
        "checkpoint": job_that_saves(),
    }
    found = {kind: recommend(job, kind, Wanted(max_vnmse=0.1)) for kind, job in jobs.items()}
    parts = PlanParts(**{kind: getattr(one.plan.parts, kind) for kind, one in found.items() if one.plan is not None})
    plan = Plan(id="a3", job=PlannedJob(n_est=8, world=2), parts=parts)
    return Recommendations(advice=found, declined={}, plan=plan)


def history():
    """A plan that is adopted and saves less than it promised."""
    at, plan = 1_767_225_600_000_000_000, {"plan": "27ae41d0", "version": 2}
    return (
        JobEvent(what="started", step=0, time_ns=at, reason="8 ESTs on 2 processes"),
        JobEvent(what="adopted", step=120, time_ns=at + 10**10, **plan),
        JobEvent(what="checkpoint", step=150, time_ns=at + 2 * 10**10),
        JobEvent(
            what="missed", step=171, time_ns=at + 3 * 10**10, before_us=81e3, after_us=62e3, promised_us=54e3, **plan
        ),
    )


def rounds():
    """An accepted plan, a reverted one, and a round without further advice."""
    kept = Round(
        round=0,
        kind="assignment",
        step=18,
        outcome="kept",
        plan="27ae41d0",
        counts=(6, 2),
        before_us=119e3,
        predicted_us=90e3,
        low_us=80e3,
        high_us=100e3,
        measured_us=86e3,
        predicted_gain_pct=24.4,
        gain_pct=27.7,
        gain_low_pct=25.0,
        gain_high_pct=30.5,
        error_pct=4.7,
    )
    back = Round(
        round=1, kind="assignment", step=130, outcome="reverted", plan="f1", counts=(5, 3), why="it gains nothing"
    )
    return kept, back, Round(round=2, kind="assignment", step=240, outcome="nothing", noticed_step=230, counts=(6, 2))


def hostile_report():
    """A report whose every text is `HOSTILE`."""
    return with_texts(report(ranks=2, diagnosis=ignoring(diagnosis(ranks=2))), HOSTILE)


def with_texts(value, text):
    """`value` with each free text in it replaced; texts from a closed list (severity, class, schema) stay."""
    closed = {"schema", "severity", "confidence", "id", "cls", "peak_memory_of", "of", "unit", "by"}
    closed |= {"kind", "sort", "phase", "origin", "what", "outcome"}
    closed |= {"objective", "collective", "gap_kind", "applies", "est_from", "determinism", "exchange"}
    if isinstance(value, msgspec.Struct):
        fields = {
            name: getattr(value, name) if name in closed else with_texts(getattr(value, name), text)
            for name in value.__struct_fields__
        }
        return type(value)(**fields)
    if isinstance(value, dict):
        keep = {*replay().critical_path.classes, *ROLES, *get_args(Kind), "now", "even split"}
        return {key if key in keep else f"{text}{key}": with_texts(item, text) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(with_texts(item, text) for item in value)
    return text if isinstance(value, str) else value


def charts(of: Report) -> dict[str, Figure]:
    """Its charts by their id."""
    return {chart.id: chart for chart in all_figures(of)}
