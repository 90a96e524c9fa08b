"""The peak for a kernel, from its precision and its device."""

import pytest

from esprof.analyzers.views.device_peaks import peak_of, precision_of


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("volta_sgemm_128x64_tn", "float32"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>", "float32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", "TF32"),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage4", "TF32"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", "16 bits"),
        ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", "16 bits"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "16 bits"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "16 bits"),
        ("nvjet_hsh_64x64_64x13_2x1_v_bz_NNT", "16 bits"),
        ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", None),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "16 bits"),
        ("volta_dgemm_64x64_nn", None),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", None),
    ],
)
def test_kernel_names_indicate_their_precision(name, precision):
    assert precision_of(name) == precision


@pytest.mark.parametrize(
    ("device", "half"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("Tesla V100-SXM2-16GB", 125), ("Tesla T4", 65),
        ("NVIDIA A100-SXM4-40GB", 312), ("NVIDIA L40S", 362), ("NVIDIA B200", 2250),
        ("AMD Instinct MI325X", 1307.4), ("AMD Instinct MI355X", 2516.6), ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", None), (None, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None), ("NVIDIA A40-48Q", None),
    ],
)  # fmt: skip
def test_peaks_depend_on_the_device(device, half):
    peak = peak_of(device)
    assert (None if peak is None else peak.rates["16 bits"]) == half
