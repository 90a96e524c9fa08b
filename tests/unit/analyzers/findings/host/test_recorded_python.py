"""ESP402 and ESP201 on traces of GPU jobs in which torch.profiler recorded Python functions."""

import msgspec
import pytest

from esprof.analyzers import diagnose
from tests.cases.graph import call, kernel, nccl, op, python, run_of, step

MS = 1000.0
LOOP, LOAD, RESIZE = "train.py(3): main", "data.py(7): load", "PIL/Image.py(90): resize"


def gpu_rank(waits_ms: float, *inside, steps: int = 6, late_ms: float | None = None) -> list:
    """Steps of 60 ms and `late_ms`: `waits_ms` without operations, 20 ms of a kernel, an all-reduce, 40 ms of it.

    `inside` are names of functions that are open in the first gap, outermost first; without any, there are no stacks.
    """
    late_ms = waits_ms if late_ms is None else late_ms
    length, rows = (60 + late_ms) * MS, [python(LOOP, -MS, 1e6)] if inside else []
    for n in range(steps):
        at = n * length
        rows += [step(n, at, at + length)]
        rows += [python(name, at + depth, waits_ms * MS - 2 * depth) for depth, name in enumerate(inside) if waits_ms]
        begin, done = at + waits_ms * MS, at + (20 + late_ms) * MS
        rows += [op("aten::mm", begin, 20 * MS), call("cudaLaunchKernel", begin + 100, 5, 10 * n + 1)]
        rows += [kernel("gemm", begin + 110, 19 * MS, 10 * n + 1)]
        rows += nccl(begin + 20 * MS, begin + 20.1 * MS, done + 20 * MS, 10 * n + 2)
        rows += [call("cudaStreamSynchronize", begin + 20.2 * MS, done + 20.1 * MS - begin - 20.2 * MS, 10 * n + 3)]
        rows += [
            op("aten::add", done + 20.1 * MS, 19.9 * MS),
            call("cudaLaunchKernel", done + 20.2 * MS, 5, 10 * n + 4),
        ]
        rows += [kernel("add", done + 20.3 * MS, 19 * MS, 10 * n + 4)]
    return rows


def found(*ranks):
    diagnosis = diagnose(run_of(dict(enumerate(ranks))))
    msgspec.json.encode(diagnosis)
    return [one for one in diagnosis.findings if one.id in ("ESP201", "ESP402", "ESP403", "ESP406")]


def test_preprocessing_on_all_ranks_is_reported_with_its_function_and_what_it_calls():
    (finding,) = found(*[gpu_rank(30, LOAD, RESIZE)] * 2)
    assert finding.id == "ESP402"
    assert finding.title == f"Ranks 0–1 spend up to 30.0 ms a step in {LOAD}, calling {RESIZE}"
    assert finding.evidence["per_step"].of(0) == pytest.approx(30_000_000, rel=0.001)
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.01)
    # The trace does not tell whether the thread ran.
    assert "cpu_share" not in finding.evidence
    assert "whether Python computes or waits" in finding.advice


def test_a_sleep_is_known_to_wait():
    (finding,) = found(gpu_rank(30, LOAD, "<built-in function sleep>"))
    assert finding.evidence["cpu_share"].value == 0
    assert "slept, or waited" in finding.advice


@pytest.mark.parametrize(
    ("call", "id"),
    [("<built-in function collect>", "ESP403"), ("<built-in method collect of Frame object at 0x7f00>", "ESP402")],
)
def test_collections_that_the_job_calls_are_garbage_collection(call, id):
    (finding,) = found(*[gpu_rank(30, LOAD, call)] * 2)
    assert (finding.id, finding.evidence["source_line"].value) == (id, LOAD)
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.01)


def test_a_function_on_one_rank_is_named_as_the_reason_of_its_lateness():
    (finding,) = found(gpu_rank(0, late_ms=30), gpu_rank(30, LOAD, RESIZE), gpu_rank(0, late_ms=30))
    assert (finding.id, finding.ranks) == ("ESP201", (1,))
    assert finding.evidence["python_line"].of(1) == LOAD
    assert finding.evidence["python_call"].of(1) == RESIZE


def test_calls_of_the_loop_are_reported_separately_also_if_they_are_built_in():
    (finding,) = found(gpu_rank(30, "<built-in method read of file object at 0x7f00>"))
    assert finding.evidence["source_line"].value == LOOP
    assert finding.evidence["calls"].value == "<built-in method read of file object>"
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.01)


def test_a_job_without_gaps_has_no_such_finding():
    assert found(*[gpu_rank(0, LOAD)] * 2) == []
