"""ESP703: multiplications in single precision on devices with tensor cores."""

import re

import msgspec
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.findings.kernels.fp32_matmul import PLAIN, _family
from esprof.run.run import Run
from tests.cases.graph import call, launched, op, run_of, step

HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"


def job(kernel: str, device: str | None, took: float = 600, rest: str = "vectorized_elementwise_kernel") -> Run:
    rows = []
    for number in range(1, 5):
        at = number * 1_000.0
        rows += [
            step(number, at, at + 1_000),
            op("aten::mm", at, 20),
            *launched(kernel, at + 5, at + 20, took, 3 * number),
        ]
        rows += launched(rest, at + 12, at + 20 + took, 900 - took, 3 * number + 1)
        rows += [call("cudaDeviceSynchronize", at + 30, 895, 3 * number + 2), op("end", at + 930, 65)]
    run = run_of({0: rows})
    metas = tuple(msgspec.structs.replace(meta, device=device) for meta in run.meta.ranks)
    return Run(msgspec.structs.replace(run.meta, ranks=metas), run._table)


def found(run: Run) -> list:
    return [finding for finding in diagnose(run).findings if finding.id == "ESP703"]


@pytest.mark.parametrize(
    ("device", "mode"),
    [("NVIDIA A100-SXM4-80GB", "set_float32_matmul_precision"), ("Tesla V100-SXM2-16GB", "GradScaler")],
)
def test_single_precision_is_reported_if_the_device_has_a_faster_mode(device, mode):
    (finding,) = found(job("ampere_sgemm_128x64_tn", device))
    assert finding.evidence["share_of_gpu_work"].of(0) == pytest.approx(0.667, abs=0.001)
    assert (finding.saving_us, finding.command) == (0, None)
    assert mode in finding.advice
    assert finding.confidence == "medium"


@pytest.mark.parametrize(
    "run",
    [
        job("ampere_sgemm_128x64_tn", None),
        job("ampere_sgemm_128x64_tn", "NVIDIA GeForce GTX 1080 Ti"),
        job("ampere_sgemm_128x64_tn", "AMD Instinct MI250X"),
        job("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "NVIDIA A100-SXM4-80GB"),
        job("ampere_sgemm_128x64_tn", "NVIDIA A100-SXM4-80GB", took=50),  # too little of the work
    ],
)
def test_other_devices_and_kernels_are_not_reported(run):
    assert not found(run)


def test_little_single_precision_is_reported_in_a_job_that_multiplies_in_16_bits():
    (finding,) = found(job("ampere_sgemm_128x64_tn", "NVIDIA A100-SXM4-80GB", took=50, rest=HALF))
    assert finding.title.endswith("in a job that multiplies in 16 bits otherwise")
    assert finding.evidence["multiplied_in_16_bits"].value == pytest.approx(850 / 900, abs=0.001)
    assert "outside of torch.autocast" in finding.advice
    assert not found(job("ampere_sgemm_128x64_tn", "NVIDIA A100-SXM4-80GB", took=5, rest=HALF))


def test_half_of_the_job_in_16_bits_is_the_threshold():
    assert (
        "otherwise" not in found(job("ampere_sgemm_128x64_tn", "NVIDIA A100-SXM4-80GB", took=500, rest=HALF))[0].title
    )


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        ("volta_sgemm_128x64_tn", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>", True),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel",
            True,
        ),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>", True),
        ("volta_scudnn_128x64_relu_medium_nn_v1", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", False),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel", False),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4", False),
        ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", False),
        ("volta_fp16_sgemm_fp16_128x64_nn", False),
        ("volta_dgemm_64x64_nn", False),
    ],
)
def test_kernel_names_distinguish_single_precision_from_tensor_cores(name, is_plain):
    assert bool(re.search(PLAIN, name)) == is_plain


@pytest.mark.parametrize(
    ("device", "known"),
    [
        ("NVIDIA H100 80GB HBM3", True), ("NVIDIA GH200 480GB", True), ("NVIDIA A100-PG509-200", True), ("Tesla T4", True),
        ("Tesla V100-DGXS-32GB", True), ("NVIDIA L4", True), ("NVIDIA A10G", True), ("NVIDIA B200", True),
        ("NVIDIA GeForce RTX 4090", True), ("Tesla P100-PCIE-16GB", False), ("NVIDIA GeForce GTX 1660", False),
        ("Tesla P40", False), ("CPU", False), ("AMD Instinct MI300X", False),
    ],
)  # fmt: skip
def test_devices_belong_to_known_families(device, known):
    assert (_family(device) is not None) == known
