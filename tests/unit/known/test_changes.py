import pytest

from benchmarks.known.changes import changed, true_steps
from benchmarks.known.program import MAIN, NOBODY, Busy, Call, Cost, GroupCollective, Kernel, Kind, Program, Step, Sync

COSTS = {
    "mm": Cost(Kind.CPU, 0, "aten::mm", 100),
    "gap": Cost(Kind.GAP, 0, "python", 100),
    "sleep": Cost(Kind.GAP, 0, "sleep", 2_000_000, 500_000),
    "batch": Cost(Kind.LOAD, 1, "batch", 100),
    "malloc": Cost(Kind.ALLOCATOR, 0, "cudaMalloc", 100),
    "delay": Cost(Kind.DELAY, 0, "cudaLaunchKernel", 100),
    "gemm": Cost(Kind.KERNEL, 0, "sgemm", 100),
    "gelu": Cost(Kind.KERNEL, 1, "gelu", 100),
    "copy": Cost(Kind.COPY, 0, "Memcpy HtoD", 100),
    "latency": Cost(Kind.LATENCY, NOBODY, "ncclDevKernel_AllReduce", 100),
    "bytes": Cost(Kind.BYTES, NOBODY, "ncclDevKernel_AllReduce", 100),
    "handling": Cost(Kind.HANDLING, 0, "gloo:all_reduce", 100),
}
PROGRAM = Program(({}, {}), tuple(COSTS.values()), (), ("NVIDIA A100", "NVIDIA H100"))


@pytest.mark.parametrize(
    ("scenario", "halved"),
    [
        ("gpu=2x", "gemm gelu"),
        ("rank1.gpu=2x", "gelu"),
        ("device[A100].gpu=2x", "gemm"),
        ("network=2x", "bytes"),
        ("cpu=2x", "mm gap sleep batch malloc handling"),
        ("rank1.cpu=2x", "batch"),
        ("host=2x", "mm gap malloc"),
        ("kernel[gemm|mm]=2x", "gemm"),
        ("collective[AllReduce]=2x", "latency bytes"),
        ("gpu=2x,network=2x", "gemm gelu bytes"),
    ],
)
def test_a_speed_halves_the_work_that_it_names(scenario, halved):
    before = dict(zip(COSTS, PROGRAM.drawn, strict=True))
    after = dict(zip(COSTS, changed(PROGRAM, scenario), strict=True))
    assert after == {name: ns // 2 if name in halved.split() else ns for name, ns in before.items()}


@pytest.mark.parametrize(
    ("scenario", "gone"),
    [
        ("communication=0", "latency bytes handling"),
        ("data=0", "batch"),
        ("rank0.data=0", ""),
        ("allocator=0", "malloc"),
    ],
)
def test_what_takes_no_time(scenario, gone):
    after = dict(zip(COSTS, changed(PROGRAM, scenario), strict=True))
    assert {name for name, ns in after.items() if not ns} == set(gone.split())


def test_a_mended_straggler_does_without_its_excess():
    after = dict(zip(COSTS, changed(PROGRAM, "straggler=fix"), strict=True))
    assert after["sleep"] == 1_500_000


def test_operations_of_a_job_on_cpus_are_its_kernels():
    on_cpus = Program(({}, {}), PROGRAM.costs, ())
    after = dict(zip(COSTS, changed(on_cpus, "kernel[aten::mm]=2x"), strict=True))
    assert after["mm"] == 50


@pytest.mark.parametrize("scenario", ["speed=2x", "gpu", "storage=2x"])
def test_other_terms_are_errors(scenario):
    with pytest.raises(ValueError, match="term"):
        changed(PROGRAM, scenario)


def test_perfect_overlap_is_no_shorter_than_the_transfers_of_a_step():
    costs = (Cost(Kind.CPU, 0, "call", 1), Cost(Kind.LATENCY, -1, "nccl", 10), Cost(Kind.BYTES, -1, "nccl", 90))
    call = Call("cudaLaunchKernelExC", 0, (Kernel(24, "nccl", -1, 0),))
    code = (Step(0), call, Busy(0), Sync("cudaStreamSynchronize", 0, stream=24), Step(None))
    program = Program(({MAIN: code},), costs, (GroupCollective((0,), 1, 2),))
    # 1 launches, 100 communicates, 1 wakes up. Without communication 3 are left: launch, work, waking up.
    assert true_steps(program, "communication=0") == {0: 3}
    assert true_steps(program, "overlap=perfect") == {0: 100}
