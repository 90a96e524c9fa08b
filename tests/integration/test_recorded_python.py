"""ESP402 on a trace that torch.profiler itself writes with stacks: the times are those of a separate count."""

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

import esprof
from tests.cases.findings import ungrouped

pytestmark = pytest.mark.integration

JOB = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))

def log_hook(module, inputs, out):
    total = 0
    for n in range(60_000):
        total += n

def resize(frame):
    time.sleep(0.002)
    return frame

def preprocess(n):
    return torch.randn(8, 64) * sum(resize(1) for _ in range(n))

def train(profiler):
    for _ in range(8):
        model(preprocess(5)).sum().backward()
        profiler.step()

model[1].register_forward_hook(log_hook)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, schedule=schedule(wait=1, warmup=1, active=5, repeat=1),
             on_trace_ready=lambda done: done.export_chrome_trace(sys.argv[1])) as profiler:
    train(profiler)
"""


def counted(path) -> Counter:
    """Time of each function of the job in a mean step without the first, ns, while no operation runs."""
    rows = [row for row in json.loads(path.read_text())["traceEvents"] if row.get("ph") == "X"]
    spans = {
        kind: [(row["ts"], row["ts"] + row["dur"], row["name"]) for row in rows if row.get("cat") == kind]
        for kind in ("cpu_op", "python_function")
    }
    job = [span for span in spans["python_function"] if span[2].startswith("job.py(")]
    steps = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row["name"].startswith("ProfilerStep#"))[1:]
    took: Counter = Counter()
    moments = sorted({moment for span in (*spans["cpu_op"], *job) for moment in span[:2]})
    for begin, end in pairwise(moments):
        if not any(first <= begin < last for first, last in steps):
            continue
        if not any(first <= begin < last for first, last, _ in spans["cpu_op"]):
            open_now = [span for span in job if span[0] <= begin < span[1]]
            # The innermost one began last.
            took[max(open_now)[2] if open_now else ""] += round(1000 * (end - begin) / len(steps))
    return took


def test_functions_of_the_job_take_as_long_as_a_separate_count_says(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    path = tmp_path / "trace.json"
    subprocess.run([sys.executable, "job.py", str(path)], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    expected = counted(path)
    found = {
        finding.evidence["source_line"].value: finding
        for finding in ungrouped(esprof.load(str(path)))  # On a busy host the saving may not be significant.
        if finding.id == "ESP402"
    }
    resize = next(line for line in expected if line.endswith(": resize"))
    hook = next(line for line in expected if line.endswith(": log_hook"))
    for line in (resize, hook):
        took = found[line].evidence["per_step"].of(0)
        assert took == pytest.approx(expected[line], rel=0.02)
    assert found[resize].evidence["calls"].value == "<built-in function sleep>"
    assert "slept, or waited" in found[resize].advice
