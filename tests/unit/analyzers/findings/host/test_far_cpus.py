"""ESP410: CPUs of another NUMA node than the GPU's."""

import msgspec
import pytest

from esprof.analyzers.findings.host.far_cpus import far_cpus
from esprof.analyzers.recorded_job import RecordedJob
from esprof.run.run import Run
from tests.cases import step_runs

NEAR, FAR = (0, 1, 2, 3), (4, 5, 6, 7)


def found(*ranks):
    """What is found if ranks have these CPUs, and those near their GPU."""
    run = step_runs.run(*(step_runs.step_table([10.0] * 4) for _ in ranks))
    metas = tuple(
        msgspec.structs.replace(meta, cpus=cpus, gpu_cpus=near)
        for meta, (cpus, near) in zip(run.meta.ranks, ranks, strict=True)
    )
    return list(far_cpus(RecordedJob(Run(msgspec.structs.replace(run.meta, ranks=metas), run._table))))


def test_ranks_without_a_cpu_near_their_gpu_are_named():
    (finding,) = found((NEAR, NEAR), (NEAR, FAR), (FAR, NEAR))
    assert finding.ranks == (1, 2)
    assert finding.title == "Ranks 1–2 run on CPUs of another NUMA node than that of their GPUs"
    assert (finding.evidence["cpus"].of(1), finding.evidence["cpus_near_the_gpu"].of(1)) == ("0–3", "4–7")


@pytest.mark.parametrize(
    "rank", [(NEAR, NEAR), (NEAR + FAR, NEAR), ((3, 4), NEAR), ((), NEAR), (NEAR, ())],
    ids=["bound", "not bound", "some near", "unknown CPUs", "unknown GPU"],
)  # fmt: skip
def test_other_ranks_are_not_reported(rank):
    assert not found(rank)
