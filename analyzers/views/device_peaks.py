"""Peak rates of devices at multiplication and memory, from vendors' data sheets."""

import re
from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "TF32", "16 bits"]
"""Precision of a kernel's multiplications: float32 on general units, or TF32 or (b)float16 on tensor or matrix cores."""


@dataclass(frozen=True)
class Peak:
    """Peaks of one kind of device. Rates are of dense multiply-adds, in 10^12 operations per second."""

    devices: str
    """Pattern of their names as torch reports them."""
    rates: dict[Precision, float]
    memory: float
    """Bandwidth of the device's memory, 10^9 bytes/s."""
    processors: int
    """Number of streaming multiprocessors or compute units."""
    link: float | None = None
    """Bandwidth of all its direct links to other devices of the host (NVLink, Infinity Fabric), in one direction,
    10^9 bytes/s; None if it may have none."""

    def rate(self, precision: Precision) -> float:
        """Operations per second; a device without units for this precision uses its general-purpose cores."""
        return self.rates.get(precision, self.rates["float32"]) * 1e12


_PEAKS = (
    Peak(r"V100-SXM", {"float32": 15.7, "16 bits": 125}, 900, 80, 150),
    Peak(r"V100-DGXS", {"float32": 15.7, "16 bits": 125}, 900, 80),
    Peak(r"V100-PCIE", {"float32": 14.0, "16 bits": 112}, 900, 80),
    Peak(r"\bT4\b", {"float32": 8.1, "16 bits": 65}, 320, 40),
    Peak(r"\bA100 80GB PCIe\b", {"float32": 19.5, "TF32": 156, "16 bits": 312}, 1935, 108),
    Peak(r"\bA100-PCIE", {"float32": 19.5, "TF32": 156, "16 bits": 312}, 1555, 108),
    Peak(r"\bA100-SXM\w*-80GB", {"float32": 19.5, "TF32": 156, "16 bits": 312}, 2039, 108, 300),
    Peak(r"\bA100-SXM", {"float32": 19.5, "TF32": 156, "16 bits": 312}, 1555, 108, 300),
    Peak(r"\bA100\b", {"float32": 19.5, "TF32": 156, "16 bits": 312}, 1555, 108),
    Peak(r"\bA30\b", {"float32": 10.3, "TF32": 82, "16 bits": 165}, 933, 56),
    Peak(r"\bA40\b", {"float32": 37.4, "TF32": 74.8, "16 bits": 149.7}, 696, 84),
    Peak(r"\bL4\b", {"float32": 30.3, "TF32": 60, "16 bits": 121}, 300, 58),
    Peak(r"\bH100 PCIe\b", {"float32": 51, "TF32": 378, "16 bits": 756}, 2000, 114),
    Peak(r"\bH100 80GB HBM3\b", {"float32": 67, "TF32": 494, "16 bits": 989}, 3350, 132, 450),
    Peak(r"\bH200\b", {"float32": 67, "TF32": 494, "16 bits": 989}, 4800, 132, 450),
    Peak(r"\bGH200\b", {"float32": 67, "TF32": 494, "16 bits": 989}, 4000, 132, 450),
    Peak(r"\bL40S\b", {"float32": 91.6, "TF32": 183, "16 bits": 362}, 864, 142),
    Peak(r"\bB200\b", {"float32": 75, "TF32": 1125, "16 bits": 2250}, 8000, 148, 900),
    Peak(r"\bMI300X\b", {"float32": 163.4, "TF32": 653.7, "16 bits": 1307.4}, 5300, 304, 448),
    Peak(r"\bMI325X\b", {"float32": 163.4, "TF32": 653.7, "16 bits": 1307.4}, 6000, 304, 448),
    Peak(r"\bMI350X\b", {"float32": 144.2, "16 bits": 2306.9}, 8000, 256, 538),
    Peak(r"\bMI355X\b", {"float32": 157.3, "16 bits": 2516.6}, 8000, 256, 538),
)
"""From NVIDIA's data sheets of V100 (2020), T4 (2019), A100 (2021), A30, A40 (2022), L4, L40S (2023), H100 and H200 (2023,
2024), B200 (2024), and AMD's of MI300X (2023), MI325X (2024), MI350X and MI355X (2025), which have no TF32. Where a data
sheet gives the rate for sparse matrices, the dense rate is half of it, as is one direction of a link: NVLink 2 to 5 carry
300, 600, 900 and 1,800 GB/s in both; seven links of Infinity Fabric 128 GB/s each, or 153.6 (MI350X, MI355X).

`processors`: NVIDIA's white papers on Volta, Turing, Ampere, Hopper and Ada, AMD's data sheets; for A30, A40, L4 and L40S
CUDA cores of the data sheet by those of a multiprocessor, 64 (A30) or 128; for B200 what its driver reports."""

_TF32 = re.compile(r"tf32|s1688gemm(?!_(fp|bf)16)", re.IGNORECASE)
_HALF = re.compile(r"bf16|bfloat16|nvjet_[ht]s[ht]|fp?16|half|hgemm|884gemm|16816|_h\w*gemm|HHS|HBS|BBS", re.IGNORECASE)
_OTHERS = re.compile(r"nvjet_(?![ht]s[ht])|dgemm|f64|s8_|i8|e4m3|e5m2|fp8", re.IGNORECASE)
"""Match names of cuBLAS, CUTLASS and rocBLAS kernels that use TF32, 16 bits, or neither of them nor float32."""


def peak_of(device: str | None) -> Peak | None:
    """The peak of a device by its name; None if it is unknown or a slice of a device (MIG, vGPU)."""
    if re.search(r"\bMIG\b|-\d+[QC]\b", device or ""):
        return None
    return next((peak for peak in _PEAKS if re.search(peak.devices, device or "")), None)


def precision_of(kernel: str) -> Precision | None:
    """Precision of a matrix multiplication kernel by its name; None for 64 or 8 bits."""
    if _OTHERS.search(kernel):
        return None
    if _HALF.search(kernel) and "tf32" not in kernel.lower():
        return "16 bits"
    return "TF32" if _TF32.search(kernel) else "float32"
