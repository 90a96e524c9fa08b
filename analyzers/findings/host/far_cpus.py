"""ESP410: ranks that may run only on CPUs of another NUMA node than that of their GPU."""

from collections.abc import Iterator

from esprof.analyzers.evidence import by_rank
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.core import readable


def far_cpus(job: RecordedJob) -> Iterator[Cause]:
    """Ranks of which no CPU is near their GPU."""
    metas = {rank: job.run.rank(rank) for rank in job.run.ranks}
    far = {rank: one for rank, one in metas.items() if one.cpus and one.gpu_cpus and not {*one.cpus} & {*one.gpu_cpus}}
    if not far:
        return
    ranks = tuple(far)
    yield Cause(
        id="ESP410",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('run', ranks)} on CPUs of another NUMA node than that "
        f"of {'its GPU' if len(far) == 1 else 'their GPUs'}",
        ranks=ranks,
        severity="warning",
        confidence="high",
        evidence={
            "cpus": by_rank({rank: readable.runs(one.cpus) for rank, one in far.items()}),
            "cpus_near_the_gpu": by_rank({rank: readable.runs(one.gpu_cpus) for rank, one in far.items()}),
        },
        advice="Bind each rank to the CPUs near its GPU: `torchrun --numa-binding=node` (since PyTorch 2.9), or `numactl "
        "--cpunodebind` and `--membind` around each rank. Launches and copies then cross no link between processors. If a "
        "scheduler set these CPUs, ask it for those near the GPU.",
    )


_PAGES = (
    Page(
        "ESP410",
        "CPUs of another NUMA node than the GPU's",
        "A host with several processors has some CPUs and memory near each GPU. A rank on the others reaches its GPU "
        "through the link between the processors, so launches and copies between host and device take longer.",
        "`cpus` are those that the rank may run on, `cpus near the gpu` those that the kernel lists for the PCI device of "
        "its GPU (`local_cpulist`). Reported if a rank has none of these. Recorded on GPUs of CUDA or ROCm.",
        "None: what the distance costs depends on the host. Compare `esprof verify` with another binding.",
        "Bind ranks to the CPUs near their GPUs.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=far_cpus)
