"""The reader of Kineto traces: every variant of the format, and rows that are not as they should be."""

import bz2
import json
import lzma
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.errors import InputError, UsageError
from esprof.run.kineto.reader import read_trace
from tests.cases import kineto as case
from tests.cases.kineto import BACKWARD, EPOCH_US, GLOO, MAIN, comms, document, kernel, launch, row, step
from tests.cases.properties import thorough

EPOCH_NS = EPOCH_US * 1000


@pytest.fixture
def read(tmp_path):
    """Write a document (or rows, or bytes) and read it."""

    def read(*rows):
        content = rows[0] if len(rows) == 1 and isinstance(rows[0], bytes | list) else None
        if content is None:
            content = rows[0] if "traceEvents" in rows[0] else document(*rows)
        return read_trace(case.write(tmp_path / "trace.json", content))

    return read


def table(trace):
    return trace.events.arrow.to_pylist()


def only(trace):
    (event,) = table(trace)
    return event


# Times


def test_integer_absolute_microseconds(read):
    event = only(read(row("aten::mm", 17, 5)))
    assert (event["start_ns"], event["dur_ns"]) == (EPOCH_NS + 17_000, 5_000)


def test_absolute_microseconds_keep_their_nanoseconds(read):
    start_ns = EPOCH_NS + 123_456_789
    trace = read(row("aten::mm", 0, 0) | {"ts": case.exactly(start_ns), "dur": case.exactly(1_234_567)})
    assert (only(trace)["start_ns"], only(trace)["dur_ns"]) == (start_ns, 1_234_567)


def test_times_relative_to_a_base(read):
    rows = [row("aten::mm", 0) | {"ts": Decimal("4458676522690.655"), "dur": Decimal("156.777")}]
    event = only(read(document(*rows, baseTimeNanoseconds=1_711_964_646_000_000_000)))
    assert event["start_ns"] == 4_458_676_522_690_655 + 1_711_964_646_000_000_000
    assert event["dur_ns"] == 156_777


def test_an_absolute_time_is_not_moved_by_the_base(read):
    trace = read(document(row("aten::mm", 3), baseTimeNanoseconds=1_711_964_646_000_000_000))
    assert only(trace)["start_ns"] == EPOCH_NS + 3_000


def test_relative_times_without_a_base_stay(read):
    assert only(read(row("aten::mm", 0) | {"ts": 12.5}))["start_ns"] == 12_500


def test_what_is_finer_than_a_nanosecond_is_rounded(read):
    event = only(read(row("aten::mm", 0) | {"ts": Decimal("1712000000000000.12349"), "dur": Decimal("2.0005")}))
    assert (event["start_ns"], event["dur_ns"]) == (EPOCH_NS + 123, 2000)


_DAY_NS = 86_400_000_000_000
_ROWS = st.lists(
    st.tuples(
        st.integers(0, 90 * _DAY_NS),
        st.integers(0, _DAY_NS),
        st.sampled_from(
            [("cpu_op", "op"), ("Kernel", "kernel"), ("cuda_runtime", "runtime"), ("gpu_memcpy", "memcpy")]
        ),
    ),
    min_size=1,
    max_size=30,
)
_BASE_NS = 1_711_964_646_000_000_000


@thorough()
@given(_ROWS, st.sampled_from(["absolute", "relative", "integer"]))
def test_any_rows_come_back_exact_and_sorted(tmp_path_factory, rows, form):
    if form == "integer":
        rows = [(start // 1000 * 1000, dur // 1000 * 1000, kind) for start, dur, kind in rows]
    offset = 0 if form == "relative" else _BASE_NS
    written = [
        {"ph": "X", "cat": cat, "name": f"row {i}", "ts": case.exactly(start + offset), "dur": case.exactly(dur)}
        for i, (start, dur, (cat, _)) in enumerate(rows)
    ]
    path = case.write(
        tmp_path_factory.getbasetemp() / "any.json", document(*written, baseTimeNanoseconds=_BASE_NS, rank=0)
    )
    wanted = [(start + _BASE_NS, dur, f"row {i}", kind) for i, (start, dur, (_, kind)) in enumerate(rows)]
    found = [(e["start_ns"], e["dur_ns"], e["name"], e["kind"]) for e in table(read_trace(path))]
    assert sorted(found) == sorted(wanted)
    # Parents before their children: at one start, the longer first.
    assert [(start, -dur) for start, dur, *_ in found] == sorted((start, -dur) for start, dur, *_ in found)


# Kinds, old and new


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", "op"),
        ("Operator", "aten::mm", "op"),
        ("cuda_runtime", "cudaLaunchKernel", "runtime"),
        ("cuda_driver", "cuLaunchKernel", "runtime"),
        ("Runtime", "cudaLaunchKernel", "runtime"),
        ("cuda_runtime", "hipLaunchKernel", "runtime"),
        ("kernel", "volta_sgemm_128x64_nn", "kernel"),
        ("Kernel", "volta_sgemm_128x64_nn", "kernel"),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", "memcpy"),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", "memcpy"),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("Memset", "Memset (Device)", "memset"),
        ("cuda_sync", "Stream Wait Event", "sync"),
        ("user_annotation", "forward", "annotation"),
        ("user_annotation", "ProfilerStep#7", "step"),
        ("Operator", "ProfilerStep#7", "step"),
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "loader"),
        ("Operator", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loader"),
        ("python_function", "train.py(12): step", "python"),
        ("user_annotation", "gloo:all_reduce", "collective"),
        ("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "collective"),
        ("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("kernel", "void vllm::cross_device_reduce_2stage<half, 4>", "collective"),
        ("kernel", "rcclGenericKernel<3, false>", "collective"),
        ("kernel", "void at::native::reduce_kernel<512, 1>", "kernel"),
    ],
)
def test_kind(read, category, name, kind):
    assert only(read(row(name, 0, cat=category)))["kind"] == kind


@pytest.mark.parametrize("category", ["ac2g", "overhead", "Trace", "gpu_user_annotation", "fwdbwd", None])
def test_rows_that_tell_nothing_are_passed_over(read, category):
    trace = read(row("aten::mm", 0), row("anything", 1, cat=category), {"ph": "i", "name": "instant", "ts": 1})
    assert [event["name"] for event in table(trace)] == ["aten::mm"]
    assert trace.warnings[0].code == "no-steps"


def test_a_trace_of_2021(read):
    old = {"cat": "Operator", "pid": 25738, "tid": "25738"}
    args = {"external id": 4}
    trace = read(
        row("ProfilerStep#5", 0, 1000, **old),
        row("aten::mm", 10, 50, **old) | {"args": {"Device": 25738, "External id": 4}},
        row("cudaLaunchKernel", 20, 5, cat="Runtime", pid=25738, tid="25738") | {"args": args | {"correlation": 9}},
        row("gemm", 40, 30, cat="Kernel", pid=0, tid="stream 7")
        | {"args": args | {"device": 0, "stream": 7, "correlation": 9}},
    )
    assert (trace.rank, trace.world_size, trace.host, trace.devices) == (None, None, None, ())
    wanted = {"ProfilerStep#5": None, "aten::mm": 4, "cudaLaunchKernel": 4, "gemm": 4}
    assert {event["name"]: event["external_id"] for event in table(trace)} == wanted
    assert [event["tid"] for event in table(trace)] == [25738, 25738, 25738, None]
    assert [event["stream"] for event in table(trace)] == [None, None, None, 7]
    assert {event["step"] for event in table(trace)} == {5}


def test_a_bare_list_of_rows(read):
    trace = read([row("aten::mm", 0), row("aten::add", 20)])
    assert [event["name"] for event in table(trace)] == ["aten::mm", "aten::add"]


def test_compressed_files_are_known_by_their_content(tmp_path):
    path = case.write(tmp_path / "trace.json.gz", document(row("aten::mm", 0)))
    assert len(read_trace(path).events) == 1
    assert len(read_trace(path.rename(tmp_path / "trace.json")).events) == 1


def test_a_file_of_several_gzip_members_padded_with_zeros(tmp_path):
    raw = json.dumps(document(row("aten::mm", 0))).encode()
    members = [case.write(tmp_path / "part.gz", part).read_bytes() for part in (raw[:20], raw[20:])]
    path = case.write(tmp_path / "whole.json", b"".join(members) + bytes(512))
    assert len(read_trace(path).events) == 1


def test_a_pipe(tmp_path):
    end, other = os.pipe()
    os.write(other, case.write(tmp_path / "a.json", document(row("aten::mm", 0))).read_bytes())
    os.close(other)
    assert len(read_trace(Path(f"/dev/fd/{end}")).events) == 1
    os.close(end)


@pytest.mark.parametrize(
    ("written", "tid"),
    [
        (25738, 25738),
        ("25738", 25738),
        ("thread 12", 12),
        ("Spans", None),
        ("", None),
        ("0x7f3a12", None),
        (None, None),
    ],
)
def test_thread_ids(read, written, tid):
    assert only(read(row("aten::mm", 0, tid=written)))["tid"] == tid


def test_metadata(read):
    trace = read(
        document(
            row("aten::mm", 0),
            kernel(5, 1, device=1),
            rank=3,
            world=8,
            groups=[case.group("0", [0, 1, 2, 3, 4, 5, 6, 7]), case.group("tp", [2, 3])],
            deviceProperties=[{"id": 0, "name": "A100"}, {"id": 1, "name": "H100"}],
            host_name="node7",
            cuda_runtime_version=12040,
        )
    )
    assert (trace.rank, trace.world_size, trace.host, trace.devices) == (3, 8, "node7", ("H100",))
    assert [(group.name, group.backend) for group in trace.groups] == [("0-7", "cuda:nccl"), ("2-3", "cuda:nccl")]
    assert trace.versions == {"cuda_runtime": "12040"}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (0, -1), (1 << 30, 1 << 31)])
def test_a_rank_or_world_size_that_cannot_be_is_unknown(read, rank, world):
    trace = read(document(row("aten::mm", 0), rank=rank, world=world))
    assert (trace.rank, trace.world_size) == (rank if rank == 0 else None, world if world == 2 else None)


# Steps


def test_gpu_work_belongs_to_the_step_that_launched_it(read):
    trace = read(
        step(1, 0, 100),
        step(2, 100, 100),
        launch(50, 1),
        kernel(150, 1),
        launch(120, 2),
        kernel(260, 2),
        kernel(10, 99, name="launched before the window"),
        row("after the window", 210),
    )
    steps = {event["name"]: event["step"] for event in table(trace) if event["kind"] not in ("step", "runtime")}
    kernels = [event["step"] for event in table(trace) if event["name"] == "gemm"]
    assert kernels == [1, 2]
    assert steps["launched before the window"] is None
    assert steps["after the window"] is None


def test_a_kernel_whose_launch_is_not_told_belongs_to_no_step(read):
    known, unknown = kernel(60, 1), kernel(30, None)
    trace = read(step(1, 0, 100), launch(20, None), unknown, launch(50, 1), known)
    assert [event["step"] for event in table(trace) if event["kind"] == "kernel"] == [None, 1]


def test_without_steps_the_window_is_one_and_says_so(read):
    trace = read(row("aten::mm", 0))
    assert only(trace)["step"] == 0
    assert [warning.code for warning in trace.warnings] == ["no-steps"]


def optimizer(ts, dur=10, name="SGD", **more):
    return row(f"Optimizer.step#{name}.step", ts, dur, **({"cat": "user_annotation"} | more))


def steps(trace):
    """Start and end of each step, µs since the first row."""
    rows = trace.steps.arrow.to_pylist()
    assert [one["step"] for one in rows] == list(range(len(rows)))
    assert {one["phase"] for one in rows} == {"timed"}
    return [tuple((one["start_ns"] - EPOCH_NS + more) // 1000 for more in (0, one["dur_ns"])) for one in rows]


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
def test_where_the_profiler_was_told_of_no_steps_they_end_with_the_optimizers(read, category):
    forward = [row("aten::mm", at) for at in (0, 110, 210)]
    trace = read(*forward, *(optimizer(at, cat=category) for at in (90, 190)), launch(95, 1), kernel(300, 1))
    assert steps(trace) == [(0, 100), (100, 200)]
    assert [warning.code for warning in trace.warnings] == ["steps-by-optimizer"]
    launched = {(event["name"], event["start_ns"]): event["step"] for event in table(trace)}
    assert [launched["aten::mm", EPOCH_NS + at * 1000] for at in (0, 110, 210)] == [0, 1, None]
    assert launched["gemm", EPOCH_NS + 300_000] == 0  # Launched in the first step.


def test_optimizers_that_take_turns_are_one_step(read):
    both = [(optimizer(at, name="Adam"), optimizer(at + 50, name="SGD")) for at in (40, 140, 240)]
    trace = read(row("aten::mm", 0), *(one for pair in both for one in pair))
    assert steps(trace) == [(0, 100), (100, 200), (200, 300)]
    assert "2 Optimizer.steps end a step" in trace.warnings[0].message


def test_optimizers_of_one_name_are_told_apart_by_what_they_hold(read):
    """A GAN's two optimizers are of one class, of different numbers of parameters."""
    rows = [row("aten::mm", 0)]
    for at in (40, 140, 240):
        rows += [optimizer(at, name="Adam"), row("aten::addcmul_", at + 2, 1)]
        rows += [optimizer(at + 50, name="Adam"), row("aten::addcmul_", at + 52, 1), row("aten::addcmul_", at + 54, 1)]
    assert steps(read(*rows)) == [(0, 100), (100, 200), (200, 300)]


def test_an_optimizer_that_holds_more_only_once_ends_a_step_all_the_same(read):
    """What makes its state in its first step has more to do there."""
    rows = [row("aten::mm", 0), *(optimizer(at) for at in (90, 190, 290)), row("aten::zeros_like", 95, 1)]
    assert steps(read(*rows)) == [(0, 100), (100, 200), (200, 300)]


def test_an_optimizer_within_another_ends_no_step(read):
    rows = [one for at in (80, 180) for one in (optimizer(at, 20, name="Wrapper"), optimizer(at + 5, 10))]
    assert steps(read(row("aten::mm", 0), *rows)) == [(0, 100), (100, 200)]


@pytest.mark.parametrize("names", [("SGD",), ("Adam", "SGD"), ("Adam", "SGD", "SGD")])
def test_optimizers_that_do_not_repeat_tell_of_no_steps(read, names):
    trace = read(row("aten::mm", 0), *(optimizer(50 * turn, name=name) for turn, name in enumerate(names, 1)))
    assert trace.steps is None
    assert [warning.code for warning in trace.warnings] == ["no-steps"]


def test_steps_that_the_profiler_was_told_of_come_before_those_of_optimizers(read):
    trace = read(step(3, 0, 200), optimizer(90), optimizer(190))
    assert trace.steps is None
    assert {event["step"] for event in table(trace)} == {3}
    assert trace.warnings == ()


def test_a_step_number_beyond_all_reason_is_no_number(read):
    trace = read(step(10**30, 0, 100), step(3, 100, 100), row("aten::mm", 120), row("aten::add", 20))
    assert {e["name"]: e["step"] for e in table(trace) if e["kind"] == "op"} == {"aten::add": None, "aten::mm": 3}


# Threads


def test_thread_roles(read):
    trace = read(
        step(1, 0, 100),
        row("aten::mm", 1),
        row("autograd::engine::evaluate_function: MmBackward0", 20, tid=BACKWARD),
        row("aten::mm", 21, 2, tid=BACKWARD),
        row("gloo:all_reduce", 30, cat="user_annotation", tid=GLOO),
        row("aten::copy_", 40, tid=55),
        kernel(50, 1),
    )
    roles = {(event["tid"], event["thread_role"]) for event in table(trace)}
    assert roles == {(MAIN, "main"), (BACKWARD, "autograd"), (GLOO, "comm"), (55, "other"), (None, None)}


def test_without_steps_the_busiest_forward_thread_is_the_main_one(read):
    trace = read(
        row("aten::mm", 0), row("aten::mm", 20), row("MmBackward0", 30, tid=BACKWARD), row("aten::copy_", 40, tid=55)
    )
    assert {e["tid"]: e["thread_role"] for e in table(trace)} == {MAIN: "main", BACKWARD: "autograd", 55: "other"}


# Collectives


def collective(trace):
    (event,) = [event for event in table(trace) if event["kind"] == "collective"]
    return event


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)", "all_reduce"),
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16>", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>", "all_reduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_collective_by_the_name_of_its_kernel(read, name, word):
    event = collective(read(kernel(0, 1, name=name)))
    assert event["collective"] == word
    assert {event[column] for column in ("group", "coll_seq", "in_bytes", "out_bytes", "peer")} == {None}


DESCRIBED = {
    "collective": "_allgather_base",
    "in_elements": 1000,
    "out_elements": 4000,
    "dtype": "BFloat16",
    "group": "7",
    "ranks": "[4, 5, 6, 7]",
    "seq": 12,
}
AS_DESCRIBED = {
    "collective": "all_gather",
    "group": "4-7",
    "coll_seq": 12,
    "in_bytes": 2000,
    "out_bytes": 8000,
    "dtype": "BFloat16",
    "is_p2p": False,
    "peer": None,
}


def test_a_collective_described_on_the_kernel_itself(read):
    event = collective(read(kernel(0, 1, name="ncclDevKernel_Generic", **DESCRIBED)))
    assert {name: event[name] for name in AS_DESCRIBED} == AS_DESCRIBED


def test_a_collective_described_by_the_call_around_its_launch(read):
    trace = read(
        comms(0, dur=30, **DESCRIBED),
        row("nccl:_all_gather_base", 5, 20, cat="user_annotation"),
        launch(10, 1),
        comms(40, dur=30, **DESCRIBED | {"seq": 13}),
        kernel(100, 1, name="ncclDevKernel_Generic"),
    )
    event = collective(trace)
    assert {name: event[name] for name in AS_DESCRIBED} == AS_DESCRIBED


def test_a_call_on_another_thread_describes_nothing(read):
    trace = read(comms(0, tid=BACKWARD, **DESCRIBED), launch(10, 1), kernel(100, 1, name="ncclDevKernel_Generic"))
    assert collective(trace)["collective"] is None


def test_a_collective_named_by_its_annotation_alone(read):
    trace = read(
        row("nccl:reduce_scatter", 5, 20, cat="user_annotation"),
        launch(10, 1),
        kernel(100, 1, name="ncclDevKernel_Generic"),
    )
    assert collective(trace)["collective"] == "reduce_scatter"
    assert collective(trace)["in_bytes"] is None


def test_bytes_from_input_dims_where_nothing_else_tells(read):
    trace = read(
        comms(0, dims=[[[4, 2048, 4096], [8]], [], []], types=["TensorList", "Scalar", "Scalar"]),
        row("nccl:all_reduce", 5, 20, cat="user_annotation"),
        launch(10, 1),
        kernel(100, 1, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL"),
    )
    assert (collective(trace)["in_bytes"], collective(trace)["dtype"]) == ((4 * 2048 * 4096 + 8) * 2, "f16")


@pytest.mark.parametrize(
    ("described", "dtype"),
    [
        ({"types": ["c10::BFloat16", "Scalar"]}, "c10::BFloat16"),
        ({"types": ["", "Scalar"], "dims": [[], [4]]}, None),
        ({"types": ["TensorList", "float"]}, None),
        ({"types": ["ScalarList"]}, None),
        ({"types": []}, None),
        ({"dtype": "Long", "types": ["float"]}, "Long"),
    ],
)
def test_element_type(read, described, dtype):
    event = collective(read(kernel(0, 1, name="ncclDevKernel_AllGather_RING_LL", collective="allgather", **described)))
    assert event["dtype"] == dtype


def test_an_old_kernel_does_not_tell_what_it_reduces(read):
    """NCCL launched the kernel for one type and branched inside."""
    assert collective(read(kernel(0, 1, name="ncclKernel_AllReduce_RING_LL_Sum_float")))["dtype"] is None


def test_all_to_all_is_told_from_send_and_receive(read):
    described = {"in_elements": 10, "out_elements": 10, "dtype": "Float"}
    for word, expected, peer in (("all_to_allv", "all_to_all", None), ("send", "send", 3), ("recv", "recv", 2)):
        event = collective(
            read(kernel(0, 1, name="ncclDevKernel_SendRecv", collective=word, source=2, target=3, **described))
        )
        assert (event["collective"], event["is_p2p"], event["peer"]) == (expected, expected != "all_to_all", peer)


@pytest.mark.parametrize(
    ("named", "group"),
    [
        ({"ranks": "[4, 5, 6, 7]"}, "4-7"),
        ({"ranks": [0, 2, 4]}, "0,2,4"),
        ({"ranks": "[0, 1, 2, 3, 4, ..., 7]", "group": "0"}, "0-7"),
        ({"ranks": "[0, 1, 2, 3, 4, ..., 7]", "group": "unknown"}, None),
        ({"ranks": "", "group": "tp"}, "2-3"),
        ({"group": 0}, "0-7"),
        ({"group": "unknown"}, None),
        ({}, None),
    ],
)
def test_group_of_a_collective(read, named, group):
    rows = [kernel(0, 1, name="ncclDevKernel_AllReduce", collective="allreduce", **named)]
    groups = [case.group("0", list(range(8))), case.group("tp", [2, 3])]
    assert collective(read(document(*rows, rank=2, world=8, groups=groups)))["group"] == group


def test_the_only_group_is_the_group_of_a_call_that_names_none(read):
    rows = [kernel(0, 1, name="ncclDevKernel_AllReduce")]
    groups = [case.group("0", [0, 1]), case.group("self", [0])]
    assert collective(read(document(*rows, rank=0, world=2, groups=groups)))["group"] == "0-1"
    assert collective(read(document(*rows, rank=0, world=2)))["group"] is None


def test_an_empty_list_of_ranks_means_all_of_them(read):
    rows = [kernel(0, 1, name="ncclDevKernel_AllReduce", group="0")]
    trace = read(document(*rows, rank=0, world=4, groups=[case.group("0", [])]))
    assert collective(trace)["group"] == "0-3"


def test_gloo_work_is_a_collective_on_a_thread(read):
    call = row("gloo:all_reduce", 0, 50, cat="user_annotation", tid=GLOO, dims=[[1024]], types=["float"])
    event = collective(read(document(call, rank=0, world=2, groups=[case.group("0", [0, 1])])))
    assert (event["tid"], event["stream"], event["collective"], event["group"]) == (GLOO, None, "all_reduce", "0-1")
    assert (event["in_bytes"], event["thread_role"]) == (4096, "comm")


# What GPUs and their runtimes write


def test_synchronisation_rows(read):
    waits = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 55}
    event = only(read(row("Stream Wait Event", 0, cat="cuda_sync", stream=7, correlation=60, device=0, **waits)))
    assert (event["kind"], event["stream"], event["sync_stream"], event["sync_correlation"]) == ("sync", 7, 20, 55)


def test_rocm_launches_stay_on_their_thread(read):
    """They name their stream by its address; that is neither a stream number nor a sign of running on a GPU."""
    for address in ("0x0", "0x7f3a12345678", "7"):
        launched = launch(10, 1, name="hipLaunchKernel", stream=address, grid=[1, 1, 1])
        trace = read(step(1, 0, 100), launched, kernel(30, 1, name="Cijk_Ailk_Bljk_HHS_BH_MT128x128x16"))
        call = next(event for event in table(trace) if event["kind"] == "runtime")
        assert (call["tid"], call["stream"], call["thread_role"]) == (MAIN, None, "main")
        assert [event["step"] for event in table(trace) if event["kind"] == "kernel"] == [1]


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("xpu_runtime", "Intel XPU", "runtime"),
        ("xpu_sync", "Intel XPU", "sync"),
        ("mtia_ccp_events", "Meta MTIA", "kernel"),
        ("hpu_op", "Gaudi", "runtime"),
        ("glow_runtime", "Glow", "runtime"),
        ("privateuse1_driver", "PrivateUse1", "runtime"),
        ("mlu_memcpy", "Cambricon", "memcpy"),
    ],
)
def test_another_device_is_read_as_a_plain_one_and_named(read, category, name, kind):
    trace = read(row("aten::mm", 0), row("something", 5, cat=category))
    assert [event["kind"] for event in table(trace)] == ["op", kind]
    (warning,) = [one for one in trace.warnings if one.code == "plain-device"]
    assert name in warning.message


def test_work_of_another_device_has_a_lane_and_a_launch(read):
    call = launch(10, 4131, name="urEnqueueKernelLaunch", cat="xpu_runtime", external_id=5)
    work = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 2, "tid": 99, "ts": EPOCH_US + 40, "dur": 9}
    trace = read(
        step(1, 0, 100), row("aten::addmm", 5, 30, external_id=5), call, work | {"args": {"correlation": 4131}}
    )
    (kernel_,) = [event for event in table(trace) if event["kind"] == "kernel"]
    assert (kernel_["device"], kernel_["stream"], kernel_["step"], kernel_["tid"]) == (2, 99, 1, None)


def test_a_call_that_was_not_recorded_gets_a_free_correlation_id_beside_the_largest(read):
    work = row("kernel", 10, 20, cat="kernel", tid=7, pid=0)
    trace = read(
        step(3, 0, 100),
        row("aten::mm", 5, 20, external_id=6),
        work | {"args": {"External id": 6}},
        launch(40, 2**63 - 1),
    )
    kernel = next(event for event in table(trace) if event["kind"] == "kernel")
    assert 0 < kernel["correlation"] < 2**63 - 1


def test_work_with_an_external_id_alone_is_linked_to_its_operation(read):
    work = {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk", "ts": EPOCH_US + 40, "dur": 9}
    inner, outer = row("aten::mm", 5, 20, external_id=6), row("aten::linear", 2, 30, external_id=5)
    trace = read(step(3, 0, 100), outer, inner, work | {"args": {"External id": 6}})
    events = {event["name"]: event for event in table(trace)}
    call, kernel_ = events["launch (not recorded)"], events["Cijk_Ailk"]
    assert (kernel_["device"], kernel_["stream"], kernel_["step"]) == (0, 0, 3)
    assert kernel_["correlation"] == call["correlation"] is not None
    assert (call["kind"], call["tid"], call["step"], call["dur_ns"]) == ("runtime", MAIN, 3, 0)
    assert call["start_ns"] == EPOCH_NS + 25_000


def test_work_that_nothing_is_known_to_have_launched_stays(read):
    work = {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk", "ts": EPOCH_US + 40, "dur": 9}
    trace = read(row("aten::mm", 5, 20, external_id=6), work | {"args": {"External id": 7}})
    assert [(event["name"], event["stream"]) for event in table(trace)] == [("aten::mm", None), ("Cijk_Ailk", 0)]


def test_events_of_unknown_categories_are_counted(read):
    odd = [row("x", ts, cat="something_new") for ts in (1, 2)]
    trace = read(row("aten::mm", 0), *odd, row("y", 3, cat="gpu_user_annotation"), row("z", 4, cat="Trace"))
    (warning,) = [one for one in trace.warnings if one.code == "events-not-read"]
    assert warning.message == "2 events of unknown categories are not read (2 'something_new')"


# Nothing is guessed, and nothing odd sinks the file


def test_what_a_row_lacks_is_null(read):
    event = only(read({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": EPOCH_US, "dur": 1}))
    known = {"name": "aten::mm", "kind": "op", "start_ns": EPOCH_NS, "dur_ns": 1000, "step": 0}
    assert {name: value for name, value in event.items() if value is not None} == known


ODD = {
    "External id": ["x", [], None, {}, True, 2**70, 1.5e300],
    "correlation": ["abc", [1], None, 2**64],
    "device": [2**40, "gpu zero", -(2**40), {}],
    "stream": ["the first", [7], None],
    "Sequence number": [[], "?", 2**63],
    "Fwd thread id": [{}, False],
    "bytes": ["many", 1e30, []],
    "Input Dims": ["[[2, 3]]", 5, {"a": 1}, [[["x"]]], [["a"]], [5], [[[2], 3]], [[2.5, None]], [[2**40, 2**40]], []],
    "Input type": [7, {}, [None, 3], "float"],
    "Collective name": [12, ["allreduce"], None, ""],
    "In msg nelems": ["lots", 2**62, [], 1.5],
    "Out msg nelems": [{}, 10**40],
    "dtype": [["float"], 3, None],
    "Process Group Name": [["0"], 1.5, {}],
    "Process Group Ranks": ["[0-7]", "all", 3, [0, "x"], ["0"], [-1], [2**70], "[" + "9" * 5000 + "]", ["0", "1"]],
    "Seq": [[], "last", 2**65],
    "Src Rank": ["me", 2**40],
    "Dst Rank": [[], 2**40],
    "wait_on_stream": ["7a", []],
    "wait_on_cuda_event_record_corr_id": [{}, 2**80],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ODD.items() for value in values])
def test_an_odd_argument_costs_only_itself(read, key, value):
    odd = kernel(0, 1, name="ncclDevKernel_SendRecv", collective="send", dtype="Float", in_elements=4, target=1)
    odd["args"][key] = value
    trace = read(odd, row("aten::mm", 100, external_id=6))
    first, second = table(trace)
    assert (first["kind"], first["start_ns"], first["dur_ns"]) == ("collective", EPOCH_NS, 20_000)
    assert (second["name"], second["external_id"]) == ("aten::mm", 6)
    if key != "correlation":
        assert first["correlation"] == 1


def test_values_that_do_not_fit_are_counted(read):
    trace = read(
        row("aten::mm", 0, external_id=[], sequence=5), row(17, 20), row("aten::add", 40, tid=[]), row("x", 50, cat=3)
    )
    warning = next(w for w in trace.warnings if w.code == "values-left-out")
    assert warning.message.startswith("4 values of an unexpected type")
    found = [(event["name"], event["tid"], event["external_id"], event["autograd_seq"]) for event in table(trace)]
    assert found == [("aten::mm", MAIN, None, 5), ("", MAIN, None, None), ("aten::add", None, None, None)]


def test_numbers_written_as_text_count(read):
    trace = read(document(row("aten::mm", 0) | {"ts": str(EPOCH_US), "dur": "3"}, rank="1", world="2"))
    assert (only(trace)["start_ns"], only(trace)["dur_ns"], trace.rank, trace.world_size) == (EPOCH_NS, 3000, 1, 2)


@pytest.mark.parametrize(
    "times",
    [
        {"dur": None},
        {"dur": -5},
        {"ts": None},
        {"ts": 1e30},
        {"ts": "soon"},
        {"dur": 1e17},
        {"dur": []},
        {"ts": 10**40},
    ],
)
@pytest.mark.parametrize("first", [EPOCH_US, Decimal(EPOCH_US) + Decimal("0.125")])
def test_events_without_a_usable_time_are_left_out(read, times, first):
    trace = read(row("aten::mm", 0) | {"ts": first}, row("aten::add", 5) | times)
    assert only(trace)["name"] == "aten::mm"
    warning = next(w for w in trace.warnings if w.code == "events-left-out")
    assert warning.message.startswith("1 of 2 events")


@pytest.mark.parametrize(
    "field",
    [
        {"deviceProperties": "none"},
        {"deviceProperties": [{"id": "first", "name": 5}, 7]},
        {"distributedInfo": []},
        {"distributedInfo": {"rank": 0, "pg_config": {"0": {"ranks": [0, 1]}}}},
        {"distributedInfo": {"rank": 0, "pg_config": [3, {"pg_name": ["0"], "ranks": {"0": 0}}]}},
        {"distributedInfo": {"rank": 0, "nccl_version": [2, 17, 1]}},
        {"baseTimeNanoseconds": "now"},
        {"baseTimeNanoseconds": 2**70},
        {"cuda_runtime_version": [12]},
        {"host_name": {}},
    ],
)
def test_odd_metadata_costs_only_itself(read, field):
    trace = read(document(row("aten::mm", 0), kernel(20, 1)) | field)
    assert [event["start_ns"] for event in table(trace)] == [EPOCH_NS, EPOCH_NS + 20_000]
    assert trace.rank in (None, 0)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "NaN", "Infinity", "N/A"])
def test_numbers_that_json_does_not_have(read, value):
    raw = json.dumps(document(row("aten::mm", 0, external_id=7, bandwidth="HERE"))).replace('"HERE"', value)
    assert only(read(raw.encode()))["external_id"] == 7


def test_text_that_is_not_utf_8_in_arguments(read):
    raw = json.dumps(document(comms(0, dims=["HERE"], types=["HERE"]))).encode().replace(b"HERE", b"\xff\xfe")
    assert only(read(raw))["shapes"] == '["\ufffd\ufffd"]'


# Files that are no trace


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b'{"traceEvents": [{"ph": "X"', "not valid JSON"),
        (b"\x00\x01\x02\xff" * 100, "a binary file"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "cat": "cpu_op", "name": "\xff"}]}', "not valid JSON"),
        (b'{"traceEvents": [{"ph": "X", "x": ' + b"[" * 100_000, "not valid JSON"),
        (b'"a text"', "no Kineto trace"),
        (b"17", "no Kineto trace"),
        (b"{}", "no Kineto trace"),
        (b'{"traceEvents": 5}', "no Kineto trace"),
        (b"[]", "no profiler event"),
        (b"[1, 2, 3]", "no profiler event"),
        (b'{"traceEvents": []}', "no profiler event"),
        (b'[{"ph": "M", "name": "process_name", "args": {"name": "python"}}]', "no profiler event"),
        (b'[{"ph": "X", "cat": "ac2g", "name": "a", "ts": 1, "dur": 1}]', "no profiler event"),
    ],
)
def test_what_is_no_trace_is_refused_with_reason_and_remedy(read, content, reason):
    with pytest.raises(InputError, match=reason) as caught:
        read(content)
    assert caught.value.path.name == "trace.json"
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["2G", "-1", "0", "", "1e9"])
def test_a_memory_limit_that_is_no_number_of_bytes_is_refused(read, monkeypatch, text):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", text)
    with pytest.raises(UsageError, match="ESPROF_MEMORY_LIMIT"):
        read(row("aten::mm", 0))


def test_the_memory_limit_holds_for_objects_too(read, monkeypatch):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "100000")
    assert len(read(*[row("aten::mm", 0)] * 100).events) == 100
    with pytest.raises(InputError, match="memory limit"):
        read(b"[" + b'{"ph":"X"},' * 8_000 + b"{}]")


# Logical workers


def turn(est, ts, dur):
    return row(f"EasyScaleThread#{est}", ts, dur, cat="user_annotation")


def test_what_an_est_issued_in_its_turn_is_marked_with_its_number(read):
    trace = read(
        step(0, 0, 900),
        row("aten::mm", 5),
        turn(2, 20, 100),
        row("aten::mm", 30),
        row("MmBackward0", 60, tid=BACKWARD),
        launch(70, 1),
        kernel(300, 1),  # in nobody's turn when it runs
        row("gloo:all_reduce", 80, tid=GLOO, cat="user_annotation"),
        turn(3, 200, 50),
        row("aten::add", 210),
        row("aten::add_", 260),
    )
    found = {(event["name"], event["start_ns"] - EPOCH_NS): event["est"] for event in table(trace)}
    assert found == {
        ("ProfilerStep#0", 0): None,
        ("aten::mm", 5_000): None,
        ("EasyScaleThread#2", 20_000): 2,
        ("aten::mm", 30_000): 2,
        ("MmBackward0", 60_000): 2,
        ("cudaLaunchKernel", 70_000): 2,
        ("gemm", 300_000): 2,
        ("gloo:all_reduce", 80_000): None,
        ("EasyScaleThread#3", 200_000): 3,
        ("aten::add", 210_000): 3,
        ("aten::add_", 260_000): None,
    }


@pytest.mark.parametrize("name", ["EasyScaleThread#", "EasyScaleThread#x", "EasyScaleThread#1234567890"])
def test_an_annotation_without_an_ests_number_is_nobodys_turn(read, name):
    trace = read(row(name, 0, 100, cat="user_annotation"), row("aten::mm", 10))
    assert [event["est"] for event in table(trace)] == [None, None]


# What torch writes that is no trace


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (
            b"\x80\x02}q\x00X\x08\x00\x00\x00segmentsq\x01]s.",
            "is a pickle, which esprof never loads",
            "torch.cuda.memory",
        ),
        (b"[[1, 2, 3], [[0, 1], [2, 3]]]", "is a memory timeline", "export_chrome_trace"),
        (
            b"<html>\n<head><title>GPU Memory Timeline HTML</title></head>",
            "is a memory timeline",
            "export_chrome_trace",
        ),
    ],
)
def test_files_about_memory_are_refused_with_what_to_export_instead(tmp_path, text, reason, remedy):
    (tmp_path / "memory.json").write_bytes(text)
    with pytest.raises(InputError, match=reason) as raised:
        read_trace(tmp_path / "memory.json")
    assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "reason", "remedy"),
    [
        ("trace.zip", b"PK\x03\x04rest", "is a zip archive", "Unpack"),
        ("trace.json", b"\x00" * 257 + b"ustar" + b"\x00" * 250, "is a tar archive", "Unpack"),
        ("run.sqlite", b"SQLite format 3\x00rest", "is a SQLite database, but no export", "export_chrome_trace"),
        ("host.xplane.pb", b"\x0a\x0brest", "is a profile of JAX or TensorFlow", "alone"),
        ("run.nsys-rep", b"abc", "is a report of Nsight Systems", "nsys export"),
        ("run.qdrep", b"abc", "is a report of Nsight Systems", "nsys export"),
        ("run.ncu-rep", b"NVR\x00", "is a report of Nsight Compute", "export_chrome_trace"),
        ("trace.pftrace", b"\x0a\x20", "is a Perfetto trace", "export_chrome_trace"),
        ("profile.pb", b"\x0a\x20", "is a file of Protocol Buffers", "export_chrome_trace"),
        ("memory.pickle", b"(dp0", "is a pickle", "memory_viz"),
        ("run.dat", b"abc", "is a binary result of rocprof", "rocpd"),
        ("run.csv", b"Time (%),Total Time (ns),Instances\n", "is a table of nsys stats", "nsys export"),
        ("run.csv", b"Start (ns),Duration (ns),CorrId\n", "is a table of nsys stats", "nsys export"),
        ("results.csv", b'"Index","KernelName","gpu-id"\n', "is a table of rocprof", "rocpd"),
        ("kernels.csv", b'"Kind","Agent_Id","Queue_Id"\n', "is a table of rocprof", "rocpd"),
        ("details.csv", b'"ID","Process ID","Kernel Name"\n', "is a table of Nsight Compute", "export_chrome_trace"),
        ("steps.csv", b"step,seconds\n1,2\n", "is a table of text", "Parquet"),
        ("report.html", b"<!DOCTYPE html><html>", "is a web page", "trace"),
        ("flame.svg", b'<?xml version="1.0"?>', "is a picture", "export_chrome_trace"),
        ("events.out.tfevents.17.host", b"\x18\x01", "is an event file of TensorBoard", "export_chrome_trace"),
        ("job.hatchet", b"abc", "is a profile of Hatchet", "export_chrome_trace"),
        ("perf.data", b"PERFILE2h", "is a recording of Linux perf", "export_chrome_trace"),
        ("trace.json", b"\x01\x02\x00\x03", "is a binary file", "export_chrome_trace"),
    ],
)
def test_files_of_other_tools_are_named_with_a_remedy(tmp_path, name, content, reason, remedy):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason) as raised:
        read_trace(tmp_path / name)
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("name", ["trace.dat", "trace.pb", "trace.csv", "trace.pkl"])
def test_a_trace_may_have_any_name(name, tmp_path):
    (tmp_path / name).write_text(json.dumps({"traceEvents": [row("aten::mm", 0)]}))
    assert only(read_trace(tmp_path / name))["name"] == "aten::mm"


def test_shapes_of_indented_json_are_those_of_compact_json(tmp_path):
    event = row("aten::mm", 0, **{"Input Dims": [[2, 3], [3, 4], []]})
    shapes = []
    for indent in (None, 2):
        (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}, indent=indent))
        shapes += [event["shapes"] for event in table(read_trace(tmp_path / "trace.json"))]
    assert shapes == ["[[2, 3], [3, 4], []]"] * 2


@pytest.mark.parametrize(("ending", "codec"), [("zst", "zstd"), ("lz4", "lz4"), ("xz", None), ("bz2", None)])
def test_compressed_traces_are_read_and_broken_ones_named(tmp_path, ending, codec, monkeypatch):
    text = json.dumps({"traceEvents": [row("aten::mm", 0)]}).encode()
    packed = {"xz": lzma.compress, "bz2": bz2.compress}.get(ending, lambda text: _by_arrow(text, codec))(text)
    path = tmp_path / f"trace.json.{ending}"
    path.write_bytes(packed)
    assert only(read_trace(path))["name"] == "aten::mm"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError):
        read_trace(path)
    path.write_bytes(packed)
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", str(len(text) - 1))
    with pytest.raises(InputError, match="larger than the memory limit"):
        read_trace(path)


def _by_arrow(text, codec):
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, codec) as stream:
        stream.write(text)
    return packed.getvalue().to_pybytes()
