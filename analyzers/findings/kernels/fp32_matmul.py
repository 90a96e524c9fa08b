"""ESP703: matrix multiplications in single precision on devices with faster modes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.device_peaks import precision_of
from esprof.analyzers.views.kernel_names import MULTIPLIES
from esprof.core.types import Rank
from esprof.replay.dfg import Dfg
from esprof.replay.whatif.graph.selections import gpu_work

MIN_SHARE_OF_STEP = 0.1
"""Least share of GPU time in these kernels for which they are reported."""

MIN_SHARE_IN_HALF_JOB = 0.01
"""The same for a job that multiplies in 16 bits otherwise: there they are an oversight rather than a choice."""

MIN_SHARE_OF_HALF = 0.5
"""Least share of the time of multiplying kernels in 16 bits that makes it such a job."""

PLAIN = r"(?<![a-z])sgemm(?!_fp16)|_simt_sgemm|scudnn|f32f32_f32f32_f32_|_ffma_"
"""Matches the names of kernels that multiply matrices or convolve in single precision without tensor cores: of cuBLAS
(`volta_sgemm_128x64_tn`, `ampere_sgemm_…`, `sm80_xmma_gemm_f32f32_f32f32_f32_…`), CUTLASS (`cutlass_80_simt_sgemm_…`) and
cuDNN (`implicit_convolve_sgemm`, `volta_scudnn_…`). Kernels that use
tensor cores have other names: `s1688gemm`, `tensorop`, `tf32f32`."""


@dataclass(frozen=True)
class _Family:
    """Devices of one architecture with tensor cores."""

    devices: str
    """Regular expression that matches their names."""
    modes: str
    """Number formats of their tensor cores."""
    advice: str


_MIXED = "torch.autocast with float16 and a GradScaler"
_TF32 = "torch.set_float32_matmul_precision('high') lets them run as TF32; torch.autocast with bfloat16 gains more"

_MIXED_JOB = (
    "Find what multiplies in float32: code outside of torch.autocast, a custom autograd function, a module that was left in "
    "float32, or operations that autocast runs in float32. If the model's accuracy allows it, convert them as well; "
    "torch.set_float32_matmul_precision('high') gains less, on Ampere and later. The speed-up has to be measured."
)

_FAMILIES = (
    _Family(r"\bV100|TITAN V\b", "float16", _MIXED),
    _Family(r"\bT4\b|RTX 20\d\d|TITAN RTX|Quadro RTX", "float16", _MIXED),
    _Family(r"\bA(100|800|30|40|10|16|2)\b|A10G|RTX 30\d\d|RTX A\d000", "TF32, bfloat16 and float16", _TF32),
    _Family(r"\bL(4|40|40S|20|2)\b|RTX 40\d\d|RTX \d000 Ada", "TF32, bfloat16 and float16", _TF32),
    _Family(r"\bG?H(100|200|800|20)\b", "TF32, bfloat16 and float16", _TF32),
    _Family(r"\bG?B(100|200|300)\b|RTX 50\d\d", "TF32, bfloat16 and float16", _TF32),
)
"""Source: NVIDIA's papers on the architectures. The tensor cores of Volta (WP-08608) and Turing (WP-09183) compute float16,
those of Ampere (GA100: V1.0 of 2020; GA102), Ada, Hopper (H100: V1.04) and Blackwell also TF32 and bfloat16. Other devices
are not examined."""


def fp32_matmul(case: Case) -> Iterator[Cause]:
    """GPU work in single precision without tensor cores, on devices that have them."""
    dfg = case.replayed.built.dfg
    families = {rank: family for rank in dfg.marks.ranks if (family := _family(case.run.rank(rank).device)) is not None}
    work = gpu_work(dfg) & np.isin(dfg.step, case.replayed.steps.steady)
    plain = work & _is_plain(dfg)
    shares = {
        rank: float(dfg.dur_ns[plain & (dfg.rank == rank)].sum() / max(dfg.dur_ns[work & (dfg.rank == rank)].sum(), 1))
        for rank in families
    }
    half = _share_in_half(dfg, work)
    least = MIN_SHARE_IN_HALF_JOB if half >= MIN_SHARE_OF_HALF else MIN_SHARE_OF_STEP
    ranks = tuple(rank for rank, share in shares.items() if share >= least)
    # The what-if selects kernels by name on all ranks, so the device of every rank must be known.
    if not ranks or len(families) < len(dfg.marks.ranks):
        return
    if not case.is_worth_reporting(case.pricer.saving_ns(f"kernel[{PLAIN}]=2x")):
        return
    most = max(ranks, key=lambda rank: shares[rank])
    yield Cause(
        id="ESP703",
        title=f"{100 * shares[most]:.0f} % of GPU time is float32 matrix multiplication without tensor cores"
        + ", in a job that multiplies in 16 bits otherwise" * (half >= MIN_SHARE_OF_HALF),
        ranks=ranks,
        confidence="medium",
        evidence={**_evidence(case, plain, shares, families[most]), "multiplied_in_16_bits": Evidence(half, "share")},
        advice=_MIXED_JOB
        if half >= MIN_SHARE_OF_HALF
        else f"If the model's accuracy allows it: {families[most].advice}. Results then differ in their last bits. "
        "The speed-up has to be measured.",
    )


def _share_in_half(dfg: Dfg, work: np.ndarray) -> float:
    """Share of the time of multiplying kernels that is in 16 bits, from 0 to 1; 0 if none multiplies."""
    multiplies = np.array([bool(MULTIPLIES.search(name)) for name in dfg.names])
    half = np.array([precision_of(name) == "16 bits" for name in dfg.names]) & multiplies
    total = float(dfg.dur_ns[work & multiplies[dfg.name]].sum())
    return round(float(dfg.dur_ns[work & half[dfg.name]].sum()) / total, 4) if total else 0.0


def _family(device: str | None) -> _Family | None:
    return next((family for family in _FAMILIES if re.search(family.devices, device or "")), None)


def _is_plain(dfg: Dfg) -> np.ndarray:
    found: np.ndarray = np.array([bool(re.search(PLAIN, name)) for name in dfg.names])[dfg.name]
    return found


def _evidence(case: Case, plain: np.ndarray, shares: dict[Rank, float], family: _Family) -> dict[str, Evidence]:
    dfg, steps = case.replayed.built.dfg, len(case.replayed.steps.steady)
    took = np.bincount(dfg.name[plain], weights=dfg.dur_ns[plain], minlength=len(dfg.names))
    return {
        "share_of_gpu_work": by_rank({rank: round(share, 3) for rank, share in shares.items()}, "share"),
        "kernels_per_step_and_rank": Evidence(round(float(plain.sum()) / steps / len(dfg.marks.ranks), 1)),
        "longest": Evidence(dfg.names[int(took.argmax())]),
        "longest_per_step_and_rank": Evidence(round(float(took.max()) / steps / len(dfg.marks.ranks)), "ns"),
        "device": Evidence(case.run.rank(next(iter(shares))).device),
        "tensor_cores_take": Evidence(family.modes),
    }


_PAGES = (
    Page(
        "ESP703",
        "float32 multiplication without tensor cores",
        "Matrix multiplications and convolutions ran in single precision on general-purpose cores, although the "
        "device has tensor cores that compute TF32, bfloat16 or float16 several times as fast.",
        "`share of gpu work` is the share of GPU time in kernels whose names indicate single precision without "
        "tensor cores (`sgemm`, `simt`, `scudnn`, `ffma`); `longest` is the kernel with the largest total time. "
        "Only devices known to have tensor cores are examined. `multiplied in 16 bits` is the share of the time of "
        "multiplications in 16 bits: from half on, 1 % of GPU time in single precision is reported, otherwise 10 %.",
        "None: the run does not show how fast other kernels would be. The finding is reported if making these "
        "kernels twice as fast saves 1 % of a step (`kernel[…]=2x`).",
        "Use torch.set_float32_matmul_precision('high') on Ampere and later, torch.autocast with bfloat16, or, on "
        "Volta and Turing, with float16 and a GradScaler. Check the loss: results differ in their last bits.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=fp32_matmul)
