"""Names of the job in a Run to share, and the words by which rules know what an operation is."""

import re
import sys

import msgspec
import pytest

from esprof.analyzers.findings.kernels.fp32_matmul import PLAIN
from esprof.analyzers.sharing.redaction.contents import redacted_contents
from esprof.analyzers.sharing.redaction.flights import redacted_flight
from esprof.analyzers.sharing.redaction.frames import redacted_frame
from esprof.analyzers.sharing.redaction.kernels import redacted_kernel
from esprof.analyzers.sharing.redaction.operations import redacted_operation
from esprof.analyzers.views.attention_kernels import of_kernel, of_operation
from esprof.analyzers.views.device_peaks import precision_of
from esprof.analyzers.views.kernel_names import MULTIPLIES
from esprof.analyzers.views.operation_counts import element_bytes
from esprof.replay.cpu.frames import frame
from esprof.run.collective_names import collective_word
from esprof.run.flight.log import FlightLog, Snapshot, StackFrame, StackThread, main_stack
from esprof.run.groups import Group
from esprof.run.probes import Condition, NotMeasured, Probes, VariedStep
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_OPTIMIZED, SAME_INPUTS
from esprof.run.raw.reasons import SnapshotReason
from esprof.run.raw.relaunch import Relaunch
from esprof.run.raw.settings import Settings
from esprof.run.run import KnobReading, RankMeta, RunMeta, RunWarning
from esprof.run.schema import EVENTS, MODULES, SAMPLES, STACKS, STAGES, table
from esprof.run.sharing.contents import RunContents
from esprof.run.stacks import is_own

KERNELS = [
    "volta_sgemm_128x64_tn",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x5_tn",
    "ampere_bf16_s1688gemm_bf16_256x128_ldg8_stages_32x1_nn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32",
    "sm90_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(cutlass_80_Params)",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(cutlass_80_Params)",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1",
    "implicit_convolve_sgemm",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t>>(Flash_fwd_params)",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    "_attn_fwd",
    "triton_poi_fused_add_gelu_0",
    "triton_tem_fused_mm_3",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::Array<char*, 3>>(int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, at::detail::Array<char*, 1>>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::MeanOps<double>>>()",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*, int)",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
    "_my_long_kernel",
    "alongside_my_own",
]


@pytest.mark.parametrize("name", KERNELS)
def test_rules_see_the_same_in_a_kernel(name):
    new = redacted_kernel(name)
    for rule in (precision_of, element_bytes, of_kernel):
        assert rule(new) == rule(name), (new, rule)
    for pattern in (MULTIPLIES, re.compile(PLAIN), re.compile("^triton_"), re.compile("softmax(?!.*backward)", re.I)):
        assert bool(pattern.search(new)) == bool(pattern.search(name)), (new, pattern)


@pytest.mark.parametrize(
    "name", ["secret_gemm_kernel", "ck_tile_secret_Fmha", "void secret::flash_fwd_secret<secret>()"]
)
def test_no_name_stands_between_the_words_of_a_kernel(name):
    assert "secret" not in redacted_kernel(name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("op", "aten::scaled_dot_product_attention"),
        ("op", "c10d::allreduce_"),
        ("op", "autograd::engine::evaluate_function: AddmmBackward0"),
        ("op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
        ("op", "torch.distributed.ddp.reducer::copy_bucket_to_grad"),
        ("op", "Torch-Compiled Region: 3/0"),
        ("op", "record_param_comms"),
        ("op", "_compile.compile_inner (dynamo_timed)"),
        ("loader", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("annotation", "nccl:all_reduce"),
        ("collective", "gloo:all_reduce"),
        ("runtime", "cudaStreamSynchronize"),
        ("runtime", "hipModuleLaunchKernel"),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)"),
        ("memset", "Memset (Device)"),
        ("step", "ProfilerStep#12"),
        ("annotation", "EasyScaleThread#3"),
        ("annotation", "PP:1F0"),
        *(("annotation", mark) for mark in (SAME_INPUTS, NOT_OPTIMIZED, DISCARDED, FLOAT64)),
    ],
)
def test_names_of_every_job_stay(kind, name):
    assert redacted_operation(kind, name) == name


@pytest.mark.parametrize(
    ("kind", "name", "new"),
    [
        ("op", "secret::mm", r"op-\w{10}"),
        (
            "op",
            "autograd::engine::evaluate_function: SecretBackward",
            r"autograd::engine::evaluate_function: op-\w{10}Backward",
        ),
        ("annotation", "Optimizer.step#Secret.step", r"Optimizer\.step#mark-\w{10}"),
        ("annotation", "FSDP::pre_forward (secret.layer)", r"FSDP::pre_forwardmark-\w{10}"),
        ("annotation", "secret_1(16)_more_8", r"mark-\w{10}\(1,16,8\)"),
        ("collective", "ncclDevKernel_SendRecv(secret*)", "ncclDevKernel_SendRecv"),
        ("collective", "void secret::cross_device_reduce_1stage<x>()", r"collective-\w{10}\.all_reduce"),
        ("python", "nn.Module: Secret_3", r"nn\.Module: module-\w{10}_3"),
        ("runtime", "secretCall", r"call-\w{10}"),
    ],
)
def test_the_rest_of_a_name_is_hashed(kind, name, new):
    found = redacted_operation(kind, name)
    assert re.fullmatch(new, found), found
    assert collective_word(found) == collective_word(name) or kind != "collective"


@pytest.mark.parametrize(
    "text",
    [
        "/home/secret/train.py(12): secret",
        "secret/model.py(3): forward",
        "torch/nn/modules/module.py(1501): _call_impl",
        "/home/secret/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py(20): all_reduce",
        "python3.11/site-packages/transformers/secret.py(3): save_pretrained",
        "python3.11/threading.py(30): run",
        "threading.py(30): run",
        "numpy/core/secret.py(3): secret",
        "<frozen secret>(3): secret",
        "<built-in function sleep>",
        "<built-in method run_backward of torch._C._EngineBase object at 0x7f00>",
    ],
)
def test_a_frame_keeps_whose_code_it_is(text):
    new = redacted_frame(text)
    assert "secret" not in new
    assert (frame(new).origin, frame(new).line, is_own(new)) == (frame(text).origin, frame(text).line, is_own(text))


def test_functions_that_rules_know_stay():
    assert redacted_frame("a/torch/autograd/graph.py(7): _engine_run_backward").endswith(
        "/torch/autograd/graph.py(7): _engine_run_backward"
    )
    assert redacted_frame("my.py(1): Secret.save_all").endswith(".save")
    assert redacted_frame("my.py(1): secret.<locals>.<lambda>").endswith(".<locals>.<lambda>")


def _flight():
    frames = (
        StackFrame("/home/secret/train.py", 3, "secret"),
        StackFrame("/usr/lib/python3.11/threading.py", 9, "wait"),
    )
    fatal = (
        "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n"
        '  File "/secret.py", line 3 in secret\nsecret\n'
    )
    return FlightLog(
        snapshots=(
            Snapshot(
                reason=SnapshotReason.ERROR, rank=0, at_ns=5, step=1, since_ns=1, error="secret: Connection reset by peer",
                error_type="SecretError", threads=(StackThread(name="secret", training=True, frames=frames),),
            ),
        ),
        fatal=fatal,
        ended=False,
    )  # fmt: skip


def test_a_flight_log_keeps_its_meaning():
    log = redacted_flight(_flight())
    assert b"secret" not in msgspec.json.encode(log).lower()
    assert log.fault == "Segmentation fault"
    assert [found.line for found in main_stack(log.fatal)] == [3]
    assert log.snapshots[0].error.endswith(": Connection reset by peer")
    assert log.snapshots[0].location.line == 3


def test_no_text_of_a_run_is_forgotten():
    """Each text field of a Run has a name of the job in it."""
    meta = RunMeta(
        world_size=1, command=("/home/secret/train.py",), model_signature="secret",
        relaunch=Relaunch(folder="/secret", environment={"NCCL_DEBUG": "secret"}, settings=Settings()),
        versions={"torch": "2.3.0+secret", "secret": "1"}, warnings=(RunWarning("clock", "secret"),),
        groups=(Group(name="secret", ranks=(0,), backend="secret", description="secret"),),
        ranks=(RankMeta(rank=0, host="secret", knobs=(KnobReading(name="threads", value="secret", reason="secret"),)),),
    )  # fmt: skip
    event = {
        "name": ["secret"],
        "kind": ["op"],
        "group": ["secret"],
        "channel": ["secret/7"],
        "collective": ["secret"],
        "dtype": ["secret"],
        "shapes": ["secret"],
    }
    module, other = (f"nn.Module: Secret.{number}" for number in (1, 2))
    stack = "/home/secret.py(1): secret\n<secret>(1): secret"
    tables = {
        ("events", 0): table(event, EVENTS),
        ("modules", 0): table({"name": [module], "inputs": [f"{other}\n{module}"], "outputs": [module]}, MODULES),
        ("stages", 0): table({"kind": ["stage", "stage"], "name": ["secret (staging)", "torch.save"]}, STAGES),
        ("samples", 0): table({"at_ns": [1], "stack": [stack]}, SAMPLES),
        ("stacks", 0): table({"before": ["secret"], "after": ["secret"], "frame": [stack], "call": ["secret"]}, STACKS),
    }
    probes = Probes(
        created_ns=0, command=("secret",), world_size=1, budget_s=1, left_out=(NotMeasured("copy", "secret"),),
        conditions=(Condition(rank=0, unknown="secret"),),
        steps=(VariedStep(rank=0, device="A", setting="--secret", samples_ns=(1,)),),
    )  # fmt: skip
    new = redacted_contents(RunContents(meta, tables, {0: _flight()}, probes))
    texts = [msgspec.json.encode(part).decode() for part in (new.meta, new.flights[0], new.probes)]
    texts += [str(rows.arrow.to_pylist()) for rows in new.tables.values()]
    assert not [text for text in texts if re.search("secret", text, re.IGNORECASE) or sys.prefix in text]
    assert new.tables["stages", 0].texts("name")[1] == "torch.save"
    assert new.tables["modules", 0].texts("inputs")[0].splitlines()[1:] == new.tables["modules", 0].texts("name")
    assert new.tables["modules", 0].texts("outputs") == [redacted_operation("python", module)]
    assert new.meta.versions == {"torch": "2.3.0"}
    assert "REDACTED" in new.meta.command[0]


def test_implementations_of_attention_are_known_by_operations():
    name = "aten::_scaled_dot_product_flash_attention"
    assert of_operation(redacted_operation("op", name)) == of_operation(name)
