"""How well the curves of `esprof probe` tell what they have not seen.

    python -m benchmarks.probes [--budget 60] [--rates 100mbit 1gbit none] [--cpu 0.5]

For each link rate, a small job on two hosts of the test bed (needs root) is recorded and probed. Then a script of its own,
which uses torch.distributed alone, measures collectives afresh on the same hosts, at sizes that no curve has seen, twice
over: how far both lie apart is what no prediction can be better than. Codecs are measured in one process, interleaved with
their probe. Prints a JSON line a collective and a codec: the median, the 90th percentile and the worst error.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import esprof
from benchmarks.figures import show
from benchmarks.settings import Setting, record
from esprof.elastic.compress.codecs.registry import codec
from esprof.recorder.shared.torch_features import all_gather, reduce_scatter
from esprof.run.curve import Curve
from esprof.run.probes import Probes

SIZES = {"all_reduce": 20, "all_gather": 6, "reduce_scatter": 6}
SMALLEST, LARGEST = 2 << 10, 6 << 20
REPEATS = 15
CODECS = ("fp16", "bf16", "topk:0.01")
CODEC_SIZES = 10
ITEM = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--rates", nargs="*", default=["100mbit", "1gbit", "none"])
    parser.add_argument("--cpu", type=float, default=0.5)
    parser.add_argument("--afresh", type=Path, help=argparse.SUPPRESS)  # Set for the script that runs on the hosts.
    options = parser.parse_args()
    if options.afresh:
        measure_afresh(options.afresh)
        return
    with tempfile.TemporaryDirectory() as folder:
        for rate in options.rates:
            links(Path(folder), rate, options.cpu, options.budget)
        codecs(Path(folder), options.budget)


def links(folder: Path, rate: str, cpu: float, budget_s: float) -> None:
    argv = ("-m", "benchmarks.jobs.mlp", "--files", str(folder / "mlp"), "--steps", "36", "--bucket-mb", "1")
    run = record(Setting(argv, (cpu, cpu), (rate, rate)), folder / f"run-{rate}", budget_s)
    assert run.probes is not None, "recorded with --probe"
    out = folder / f"afresh-{rate}.json"
    bed = ["torchrun", "--cpu", str(cpu), str(cpu), "--rate", rate, rate, "--"]
    argv = ("-m", "benchmarks.probes", "--afresh", str(out))
    subprocess.run([sys.executable, "-m", "benchmarks.testbed", *bed, *argv], check=True, stdout=sys.stderr)
    for name, rounds in json.loads(out.read_text()).items():
        sweep = run.probes.find("collective", name)
        assert sweep is not None, f"{name} was probed"
        judge(f"probe_{name}_{rate}", sweep.curve(), rounds, {"rate": rate, "cpu": cpu})


def measure_afresh(out: Path) -> None:
    """Run on each host: ns of each collective at each size, twice over; rank 0 writes them."""
    dist.init_process_group("gloo")
    chosen = random.Random(7)
    sizes = {name: sorted(unseen(chosen) for _ in range(count)) for name, count in SIZES.items()}
    found: dict[str, list[dict[int, float]]] = {name: [] for name in SIZES}
    for _ in range(2):
        for name, of_name in sizes.items():
            found[name].append({size: collective_ns(name, size) for size in of_name})
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()
    time.sleep(0.5)


def unseen(chosen: random.Random) -> int:
    """A size that is a power of two only by chance, in whole elements for two ranks."""
    return round(2 ** chosen.uniform(np.log2(SMALLEST), np.log2(LARGEST))) // (2 * ITEM) * (2 * ITEM)


def collective_ns(name: str, size: int) -> float:
    """The median over repeats of what it took the rank that came last."""
    whole, part = torch.zeros(size // ITEM), torch.zeros(size // ITEM // dist.get_world_size())
    once: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part, None).wait(),
        "reduce_scatter": lambda: reduce_scatter(part, whole, None).wait(),
    }
    took = []
    for _ in range(REPEATS + 2):
        dist.barrier()
        began = time.perf_counter_ns()
        once[name]()
        mine = torch.tensor(time.perf_counter_ns() - began)
        dist.all_reduce(mine, dist.ReduceOp.MIN)
        took.append(int(mine))
    return float(np.median(took[2:]))


def codecs(folder: Path, budget_s: float) -> None:
    """Probe one process, and measure the same codecs in a fresh one."""
    out = folder / "run-codecs"
    job = [sys.executable, "-m", "benchmarks.jobs.one_process", "--steps", "36"]
    options = ["-q", "-f", "-o", str(out), "--stack-steps", "0", "--probe", str(budget_s)]
    subprocess.run([sys.executable, "-m", "esprof", "record", *options, "--", *job], check=True, stdout=sys.stderr)
    probes = esprof.load(out).probes
    assert probes is not None, "recorded with --probe"
    torch.set_num_threads(1)
    # As in any job that has freed large tensors: else the allocator gives and takes pages at every call.
    torch.ones(1 << 25).sum()
    chosen = random.Random(11)
    sizes = sorted(round(2 ** chosen.uniform(12, 24)) // ITEM * ITEM for _ in range(CODEC_SIZES))
    for spec in CODECS:
        for kind in ("encode", "decode"):
            rounds = [{str(size): codec_ns(spec, kind, size) for size in sizes} for _ in range(2)]
            judge(f"probe_{kind}_{spec}", curve_of(probes, kind, spec), rounds, {"codec": spec})


def curve_of(probes: Probes, kind: str, spec: str) -> Curve:
    sweep = next(one for one in probes.sweeps if (one.kind, one.name, one.beside) == (kind, spec, ""))
    return sweep.curve()


def codec_ns(spec: str, kind: str, size: int) -> float:
    made = codec(spec)
    assert made is not None, "no codec is none"
    gradient, state = torch.randn(size // ITEM), dict[str, torch.Tensor]()
    wire, out = made.encode(gradient, state), torch.empty_like(gradient)
    took = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter_ns()
        if kind == "encode":
            made.encode(gradient, state)
        else:
            made.decode(wire, out)
        took.append(time.perf_counter_ns() - began)
    return float(np.median(took[2:]))


def judge(name: str, curve: Curve, rounds: list[dict[str, float]], context: dict[str, object]) -> None:
    """Show how far the curve, and the line beside it, are off the fresh measurements within its reach."""
    first, second = rounds
    sizes = [size for size in first if curve.holds(int(size))]
    truth = np.array([(first[size] + second[size]) / 2 for size in sizes])
    apart = np.array([abs(first[size] / second[size] - 1) for size in sizes])
    predicted = np.array([curve.at(int(size)) for size in sizes])
    line = curve.line()
    straight = np.array([line.alpha_ns + line.beta_ns * int(size) for size in sizes])
    errors, line_errors = 100 * np.abs(predicted / truth - 1), 100 * np.abs(straight / truth - 1)
    more = {
        "sizes": len(sizes),
        "beyond_the_curve": len(first) - len(sizes),
        "p90": round(float(np.quantile(errors, 0.9)), 2),
        "worst": round(float(errors.max()), 2),
        "bias": round(float(np.median(100 * (predicted / truth - 1))), 2),
        "line_median": round(float(np.median(line_errors)), 2),
        "line_worst": round(float(line_errors.max()), 2),
        "two_measurements_apart_median": round(100 * float(np.median(apart)), 2),
        "two_measurements_apart_p90": round(100 * float(np.quantile(apart, 0.9)), 2),
    }
    show(name, float(np.median(errors)), "%", context | more)


if __name__ == "__main__":
    main()
