"""Products with weights of which two of each four neighbours are zero (2:4), against dense ones, as `esprof probe` measures
them in a job, and what `sparsity[.]=2:4` answers from that."""

from statistics import median

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.sizes import LARGE, size
from benchmarks.unseen import ask
from esprof.core.types import NS_PER_US
from esprof.run.probes import Probes

WHAT_IF = "sparsity[.]=2:4"


def measure(kit: Kit) -> None:
    run = kit.record("sparsity", kit.job("train", *size(kit, LARGE), "--half"), "--shapes", "--probe", "30")
    assert run.probes is not None
    assert run.path is not None
    show_pairs(kit, run.probes)
    answer = ask(run.path, [WHAT_IF])[WHAT_IF]
    if isinstance(answer, str):
        kit.show("refused", 1, "answers", what_if=WHAT_IF, reasons=[answer])
    else:
        kit.show("predicted_step", answer.predicted, "ms a step", what_if=WHAT_IF)


def show_pairs(kit: Kit, probes: Probes) -> None:
    """How many times as fast each measured product is, and how long packing its weight takes."""
    for sparse in (one for one in probes.sweeps if one.kind == "sparse"):
        dense = probes.find("dense", sparse.name)
        for flop in (point.size for point in sparse.points):
            if dense is not None and dense.curve().holds(flop):
                ratio = dense.curve().at(flop) / sparse.curve().at(flop)
                kit.show("sparse_vs_dense", ratio, "times as fast", weight=sparse.name, gflop=flop / 1e9)
    for one in (one for one in probes.sweeps if one.kind == "sparsify"):
        kit.show("sparsify", median(one.points[0].samples_ns) / NS_PER_US, "µs", weight=one.name)
