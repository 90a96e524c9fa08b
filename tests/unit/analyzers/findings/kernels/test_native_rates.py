"""What a device attains at a multiplication, and what keeps a kernel from it."""

import pytest

from esprof.analyzers.findings.kernels.native_rates import NativeRates, Product, full_share
from esprof.analyzers.views.device_peaks import peak_of
from esprof.run.probes import Point, Probes, Sweep

A100 = peak_of("NVIDIA A100-SXM4-80GB")
SIDES = {512: 9_000, 2048: 95_000, 4096: 620_000}
"""Side of square matrices -> duration, ns."""


def probes(device: str = "cuda") -> Probes:
    points = tuple(Point(size=2 * side**3, samples_ns=(took,) * 3) for side, took in SIDES.items())
    sweep = Sweep(kind="matmul", name="bfloat16", unit="flop", ranks=(0,), device=device, points=points)
    return Probes(created_ns=0, world_size=1, budget_s=60, whole=True, sweeps=(sweep,))


def test_the_fastest_product_of_the_probe_reaches_all_of_the_native_rate():
    native = NativeRates.of(A100, probes(), 0)
    shares = {
        side: 1e9 * 2 * side**3 / took / native.attainable(Product(1, side, side, side), "16 bits")
        for side, took in SIDES.items()
    }
    assert max(shares.values()) == pytest.approx(1.0)
    assert shares[512] < 1
    assert native.probed == {"16 bits"}


@pytest.mark.parametrize(("found", "rank"), [(None, 0), (probes(), 1), (probes("cpu"), 0)])
def test_without_a_probe_of_this_device_the_data_sheet_counts(found, rank):
    native = NativeRates.of(A100, found, rank)
    assert native.operations == {"16 bits": 312e12, "TF32": 156e12, "float32": 19.5e12}
    assert (native.memory, native.processors, native.probed) == (2039e9, 108, frozenset())


@pytest.mark.parametrize(
    ("columns", "tile", "waves"),
    [(1536, 1.0, 1.0), (1537, 1537 / (13 * 128), 117 / 108 / 2)],
)
def test_one_column_more_begins_another_wave(columns, tile, waves):
    assert full_share(Product(1, 2304, columns, 4096), (256, 128), 108) == pytest.approx((tile, waves))


@pytest.mark.parametrize(
    ("product", "kernel", "limit"),
    [
        (Product(1, 4096, 8, 4096), "sgemm_128x128", "memory"),
        (Product(1, 4096, 8, 4097), "sgemm_128x128", "memory"),
        (Product(1, 2304, 1537, 4096), "s16816gemm_bf16_128x128_ldg8", "alignment"),
        (Product(1, 4096, 4096, 4097), "s16816gemm_bf16_128x128_ldg8", "alignment"),
        (Product(1, 2304, 1544, 4096), "s16816gemm_bf16_256x128_ldg8_stages_32x5", "wave"),
        (Product(1, 2304, 1544, 4096), "s16816gemm_bf16_256x128_splitK", "unknown"),
        (Product(64, 1032, 1032, 4096), "nvjet_hsh_256x256_64x4_2x1", "tile"),
        (Product(1, 2304, 1536, 4096), "s16816gemm_bf16_256x128_ldg8", "unknown"),
        (Product(1, 2304, 1544, 4096), "triton_tem_fused_mm_0", "unknown"),
        # Memory feeds 97 % of the rate of tensor cores, which is no reason for half-empty waves.
        (Product(1, 2304, 1544, 176), "s16816gemm_bf16_256x128_ldg8", "wave"),
    ],
)
def test_each_cause_is_named_and_others_are_not(product, kernel, limit):
    assert NativeRates.of(A100, None, 0).limit(product, "16 bits", kernel) == limit
