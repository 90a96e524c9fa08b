"""ESP405, calls that wait for the device, and the what-if `sync=0`."""

import pytest

from esprof.analyzers import diagnose
from esprof.replay import answer
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, Row, call, kernel, launched, load_call, op, python, run_of, step

STEPS = 6
STEP_US = 1_000.0


def reading_step(number: int, *, waits: bool = True, stream: int = 7) -> list:
    """A kernel of 300 µs whose result is read, then 200 µs of CPU work, which launches another kernel of 300 µs."""
    at, correlation = number * STEP_US, 10 * number + 1
    rows = [step(number, at, at + STEP_US), op("aten::mm", at, 20), *launched("a", at + 5, at + 20, 300, correlation)]
    if stream != 7:  # The read waits for another stream.
        rows += launched("read", at + 22, at + 30, 295, correlation + 3, stream=stream)
    if waits:
        rows += [
            op("aten::item", at + 30, 310),
            op("aten::_local_scalar_dense", at + 32, 306),
            call("cudaStreamSynchronize", at + 35, 293, correlation + 1),
        ]
    rows += [op("aten::add", at + 340, 200), *launched("b", at + 530, at + 540, 300, correlation + 2)]
    rows += [op("Optimizer.step", at + 545, 450)]
    return rows


def job(*more: Row, **how) -> Run:
    return run_of({0: [row for number in range(1, STEPS + 1) for row in reading_step(number, **how)] + [*more]})


def sync_findings(run: Run) -> list:
    return [finding for finding in ungrouped(run) if finding.id == "ESP405"]


def test_without_the_wait_the_cpu_launches_while_the_gpu_works():
    (found,) = answer(job(), ["sync=0"]).what_if
    # At most 20 of the 293 µs are not waiting: the CPU needs 1,000 - 293 to 313 µs, and the GPU 600.
    assert found.predicted_us == pytest.approx(STEP_US - 283, abs=12)
    assert "at once" in (found.note or "")


@pytest.mark.parametrize(("by_worker", "saved_us"), [(True, 0), (False, 290)])
def test_a_batch_of_a_worker_comes_no_sooner_for_a_rank_that_asks_earlier(by_worker, saved_us):
    """A result is read until 330 µs. Then a batch is waited for, or made, until 640 µs, and another kernel launched."""
    rows = []
    for number in range(1, STEPS + 1):
        at, correlation = number * STEP_US, 10 * number + 1
        rows += [step(number, at, at + STEP_US), op("aten::mm", at, 20)]
        rows += launched("a", at + 5, at + 20, 300, correlation)
        rows += [op("aten::item", at + 30, 300), call("cudaStreamSynchronize", at + 35, 290, correlation + 1)]
        rows += [load_call(at + 340, at + 640, worker=by_worker), op("aten::add", at + 650, 300)]
        rows += launched("b", at + 690, at + 700, 200, correlation + 2)
    (found,) = answer(run_of({0: rows}), ["sync=0"]).what_if
    assert found.saving_us == pytest.approx(saved_us, abs=20)
    (both,) = answer(run_of({0: rows}), ["sync=0,data=0"]).what_if
    assert both.saving_us == pytest.approx(500, abs=10)  # The GPU needs 500 µs.


def test_a_step_is_no_shorter_than_its_gpu_needs():
    """The CPU has 60 µs of work and waits for 1,000 µs of kernels."""
    rows = []
    for number in range(1, 12):
        at = number * 1_100.0
        rows += [
            step(number, at, at + 1_100),
            op("aten::mm", at, 20),
            *launched("a", at + 5, at + 20, 1_000, 2 * number),
        ]
        rows += [call("cudaDeviceSynchronize", at + 30, 995, 2 * number + 1), op("end", at + 1_030, 60)]
    (found,) = answer(run_of({0: rows}), ["sync=0"]).what_if
    assert found.predicted_us == pytest.approx(1_000, rel=0.02)


def test_a_read_within_the_step_is_reported_with_its_caller_and_the_idle_time_of_the_gpu():
    (finding,) = sync_findings(job())
    assert finding.title.startswith("aten::item blocks the CPU once a step")
    assert finding.evidence["calls_per_step_and_rank"].of("aten::item") == 1
    # From the end of the kernel at 320 µs to the start of the next one at 540 µs, and 180 µs until the next step's kernel.
    steps = len(diagnose(job()).steps)
    assert finding.evidence["idle_after"].of("aten::item") == (220_000 * steps + 180_000 * (steps - 1)) / steps
    assert finding.command.endswith("sync=0")
    assert "losses and metrics" in finding.advice
    assert "python_line" not in finding.evidence
    # A faster CPU saves some of the same time, which counts once.
    read, slow_cpu = diagnose(job()).findings
    assert (read.id, slow_cpu.id) == ("ESP405", "ESP401")
    (alone,) = (one for one in ungrouped(job()) if one.id == "ESP401")
    assert slow_cpu.saving_us < alone.saving_us


def test_the_modules_that_enclose_the_read_are_reported_if_the_trace_has_them():
    router = (python("nn.Module: Router_1", number * STEP_US + 25, 400) for number in range(1, STEPS + 1))
    (finding,) = sync_findings(job(*router))
    assert finding.evidence["module"].of("aten::item") == "Router_1"


def test_without_a_wait_there_is_no_finding():
    assert not sync_findings(job(waits=False))


def test_the_line_is_that_of_a_sample_taken_while_the_call_waits():
    run = job()
    at = EPOCH_NS + round((3 * STEP_US + 100) * 1000)
    stack = "train.py(40): main\ntrain.py(52): log_loss\npython3.11/site-packages/torch/_tensor.py(10): item"
    samples = table({"at_ns": [at], "dur_ns": [10_000], "cpu_ns": [0], "step": [3], "stack": [stack]}, SAMPLES)
    events = run.events(0)
    sampled = Run(run.meta, lambda name, rank: {"events": events, "samples": samples}.get(name))
    (finding,) = sync_findings(sampled)
    assert finding.evidence["python_line"].of("aten::item") == "train.py(52): log_loss"
    assert finding.advice.startswith("At train.py(52): log_loss: ")


def test_a_gpu_that_is_busy_on_another_stream_is_not_idle():
    """While the result of one stream is read, another stream is busy until the next kernel starts."""
    rows = []
    for number in range(1, 7):
        at = number * STEP_US
        rows += reading_step(number)
        rows += [
            call("cudaLaunchKernel", at + 23, 5, 10 * number + 7),
            kernel("long", at + 40, 900, 10 * number + 7, stream=9),
        ]
    (finding,) = sync_findings(run_of({0: rows}))
    # It idles only between steps, from 940 to 1,020 µs, and not after the last one.
    steps = len(diagnose(run_of({0: rows})).steps)
    assert finding.evidence["idle_after"].of("aten::item") == 80_000 * (steps - 1) / steps
    assert finding.saving_us <= 80


def test_the_finding_of_a_slow_cpu_mentions_kernels_shorter_than_their_launch():
    def advice(kernel_us: float) -> tuple[float, str]:
        rows = [step(1, 0, 10_000)]
        for n in range(50):
            rows += [op("aten::add", n * 200, 150), *launched("k", n * 200 + 100, n * 200 + 110, kernel_us, n + 1)]
        (finding,) = [one for one in ungrouped(run_of({0: rows})) if one.id == "ESP401"]
        return finding.evidence["kernels_shorter_than_a_launch"].value, finding.advice

    share, text = advice(2.0)
    assert share == 1
    assert text.startswith("Most kernels take less time than their launch")
    share, text = advice(20.0)
    assert share == 0
    assert "The CPU is busy between" in text
