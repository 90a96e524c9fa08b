"""Implementations of attention by kernel and operation."""

import pytest

from esprof.analyzers.ops.over_ranks import ops_run
from esprof.analyzers.views.attention_kernels import of_kernel
from tests.cases.graph import call, launched, op, run_of, step


@pytest.mark.parametrize(
    ("kernel", "implementation"),
    [
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)",
            "FlashAttention 2",
        ),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>(y)", "FlashAttention 2"),
        ("void flash_fwd_splitkv_combine_kernel<x>(y)", "FlashAttention 2"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<x>>>", "FlashAttention 3"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(params)", "memory-efficient (CUTLASS)"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "cuDNN"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<x>(y)", "FlashInfer"),
        ("void vllm::paged_attention_v2_kernel<x>(y)", "vLLM paged attention"),
        ("kernel_unified_attention_2d", "Triton, of vLLM"),
        ("_fwd_grouped_kernel_stage1", "Triton, of SGLang"),
        ("triton_tem_fused_flex_attention_0", "FlexAttention"),
        ("attn_fwd", "AOTriton"),
        ("_attn_fwd", "Triton"),
        ("void cutlass::device_kernel<hstu::enable_sm90<hstu::FlashAttnFwdSm90<x>>>", None),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", None),
        ("void at::native::softmax_warp_forward<float, float, float, 10>(x)", None),
        ("_fwd_kernel", None),
    ],
)
def test_kernels_by_name(kernel, implementation):
    assert of_kernel(kernel) == implementation


def found(operation: str, name: str):
    rows = []
    for n in range(1, 3):
        at = 1_000.0 * n
        rows += [step(n, at, at + 1_000), op("aten::mm", at, 20), *launched("gemm", at + 5, at + 20, 50, 3 * n)]
        rows += [op(operation, at + 30, 40), *launched(name, at + 40, at + 80, 200, 3 * n + 1)]
        rows += [call("cudaDeviceSynchronize", at + 100, 800, 3 * n + 2)]
    return [(one.implementation, one.kernels, one.us) for one in ops_run(run_of({0: rows})).attention]


def test_a_kernel_with_a_name_precedes_its_operation():
    assert found("aten::_scaled_dot_product_flash_attention", "pytorch_flash::flash_fwd_kernel") == [
        ("FlashAttention 2", 1, 200)
    ]


def test_a_kernel_without_a_name_is_part_of_what_its_operation_launches_otherwise():
    rows = []
    for n in range(1, 3):
        at = 1_000.0 * n
        rows += [step(n, at, at + 1_000), op("aten::_scaled_dot_product_flash_attention_backward", at + 30, 60)]
        rows += launched("void at::native::fill", at + 35, at + 80, 10, 4 * n)
        rows += launched("pytorch_flash::flash_bwd_dq_dk_dv_loop", at + 50, at + 100, 200, 4 * n + 1)
        rows += [call("cudaDeviceSynchronize", at + 100, 800, 4 * n + 2)]
    (one,) = ops_run(run_of({0: rows})).attention
    assert (one.implementation, one.kernels, one.us) == ("FlashAttention 2", 2, 210)


def test_an_operation_names_kernels_that_do_not():
    assert found("aten::_scaled_dot_product_attention_math", "gemm") == [("math", 1, 200)]


def test_nothing_is_claimed_where_neither_has_a_name():
    assert found("aten::linear", "gemm") == []
