"""Products of matrices: their share of the best that a probe has shown (ESP702), and kernels of torch.compile."""

import json
from collections import defaultdict
from statistics import median

from benchmarks.gpu.kit import Kit, launched
from benchmarks.gpu.replayed import MAX_ERROR_PCT, show_replay
from esprof.analyzers.findings.kernels.native_rates import NativeRates, Product
from esprof.analyzers.findings.kernels.slow_matmul import multiplications
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.views.device_peaks import peak_of, precision_of
from esprof.replay.replayed import Replayed

_PROBE_S = "30"
_REPEATS = "2"


def measure(kit: Kit) -> None:
    run = kit.record("products", kit.job("products"), "--shapes", "--probe", _PROBE_S)
    show_replay(kit, run, job="products")
    case = Case(Replayed.of(run, max_error_pct=MAX_ERROR_PCT), RecordedJob(run))
    peak, took = peak_of(run.rank(0).device), defaultdict[tuple[str, Product], list[float]](list)
    for kernel, took_ns, shape in multiplications(case, 0):
        took[kernel, Product(*shape)].append(took_ns)
    kit.show("products_seen", len({product for _, product in took}), "products")
    for (kernel, product), times_ns in took.items():
        precision = precision_of(kernel)
        if peak is not None and precision is not None:
            native = NativeRates.of(peak, run.probes, 0)
            best = native.attainable(product, precision)
            kit.show(
                "native_share",
                [1e9 * product.operations / took_ns / best for took_ns in times_ns],
                "share",
                product=f"{product.rows} x {product.inner} x {product.columns}",
                kernel=kernel,
                limit=native.limit(product, precision, kernel),
                full=native.full(product, kernel),
            )
    if kit.device == "cuda":  # On a CPU inductor has no template for them.
        _show_templates(kit)


def _show_templates(kit: Kit) -> None:
    """What `esprof verify --set compile=max-autotune` reads back and measures."""
    recorded = str(kit.out / "runs" / "products")
    options = ["--set", "compile=max-autotune", "--repeats", _REPEATS, "--json"]
    job = launched(kit.job("products", "--compiled", "--steps", "60"), 1)
    answer = json.loads(kit.output(["-m", "esprof", "verify", recorded, *options, "--", *job]))
    ratios = [pair["after"]["step_us"] / pair["before"]["step_us"] for pair in answer["pairs"]]
    kit.show("max_autotune_step", median(ratios), "of the default step", knobs=answer["knobs"], ratios=ratios)
