"""`esprof recommend`: plans for a real elastic job, and shares of devices for several jobs."""

import json
import subprocess
import sys

import pytest

from esprof.core.plan import CompressionBody, write_plan
from tests.cases.command_line import esprof
from tests.cases.compression import part, planned
from tests.cases.record import JOBS, environment

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("uneven") / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run([*launch, str(JOBS / "uneven_ests.py"), str(path)], env=environment(PYTHONPATH="."), check=True)
    return path


def test_a_plan_from_a_recorded_job(run, tmp_path):
    plan = tmp_path / "plan.json"
    done = esprof("recommend", run, "-o", plan)
    assert done.returncode == 0, done.stderr
    assert "A step would take" in done.stdout
    body = json.loads(plan.read_text())["parts"]["assignment"]["body"]
    fast, slow = (len(ests) for ests in body["ests"])
    assert fast > slow > 0
    assert [cost["est_from"] for cost in body["devices"]] == ["measured", "measured"]
    assert all(cost["est_us"] >= 20_000 * (1 + 3 * cost["rank"]) for cost in body["devices"])  # It sleeps so long.

    assert "verified" in esprof("recommend", "--check", plan).stdout
    answered = json.loads(esprof("replay", run, "--what-if", f"assign={plan}", "--json").stdout)["what_if"][0]
    advice = json.loads(esprof("recommend", run, "--only", "assignment", "--json").stdout)
    assert answered["answered"]
    assert answered["predicted_us"] == pytest.approx(advice["value"])
    assert {"schema", "objective", "value", "decision", "certificate"} <= set(advice)

    again = esprof("recommend", run, "-o", plan)
    assert again.returncode == 1
    assert "already exists" in again.stderr
    assert esprof("recommend", run, "-o", plan, "--force").returncode == 0


def test_the_report_shows_it(run, tmp_path):
    page = tmp_path / "report.html"
    assert esprof("report", run, "-o", page).returncode == 0
    text = page.read_text()
    assert '<section id="plan">' in text
    assert "Assignment of logical workers (ESTs)" in text
    assert '<span class="est">3</span>' in text


def test_the_page_of_a_plan(run, tmp_path):
    page = tmp_path / "plan.html"
    assert esprof("recommend", run, "--only", "assignment", "-o", page).returncode == 0
    text = page.read_text()
    assert '<section id="plan">' in text
    assert "Checkpoints" not in text
    for refused in (("--jobs", "jobs.yaml"), (run, "--only", "parallel")):
        asked = esprof("recommend", *refused, "-o", tmp_path / "other.html")
        assert (asked.returncode, "only for RUN" in asked.stderr) == (2, True)


def test_the_proof_of_a_modified_plan_is_rejected(run, tmp_path):
    plan = tmp_path / "plan.json"
    esprof("recommend", run, "-o", plan)
    done = json.loads(plan.read_text())
    done["parts"]["assignment"]["body"]["compute_us"] *= 2
    plan.write_text(json.dumps(done))
    checked = esprof("recommend", "--check", plan)
    assert checked.returncode == 1
    assert "the optimum that the plan states" in checked.stderr


JOBS_FILE = """
jobs:
  - {id: a, steps: 1000, throughput_steps_per_s: {A: 10, B: 1}}
  - {id: b, steps: 1000, throughput_steps_per_s: {A: 10, B: 5}}
"""


def test_a_share_of_devices_from_files_of_jobs(tmp_path):
    for name, text in {
        "jobs.yaml": JOBS_FILE,
        "gpus.yaml": "devices: {A: 1, B: 1}",
        "prices.yaml": "per_hour: {A: 36, B: 3.6}",
    }.items():
        (tmp_path / name).write_text(text)
    asked = ["recommend", "--jobs", "jobs.yaml", "--inventory", "gpus.yaml"]
    done = esprof(*asked, "--objective", "makespan", "--json", cwd=tmp_path)
    # `a` is on A for x of its time and else on B, and `b` the other way round: 9 x + 1 = 10 - 5 x steps a second.
    assert json.loads(done.stdout)["value"] == pytest.approx(1_000 / (9 * (9 / 14) + 1))
    done = esprof(*asked, "--objective", "cost", "--prices", "prices.yaml", "-o", "advice.json", cwd=tmp_path)
    assert "All jobs end for a cost of 1.20" in done.stdout  # On B `a` costs 1, and `b` 0.2.
    assert "verified" in esprof("recommend", "--check", "advice.json", cwd=tmp_path).stdout


SIZES_FILE = (
    "{cluster: {A: 3}, jobs: [{id: a, steps: 100, sizes: {1: 1, 3: 4}}, {id: b, steps: 10, sizes: {1: 1, 2: 2}}]}"
)


def test_sizes_of_jobs_are_written_and_verified(tmp_path):
    (tmp_path / "jobs.yaml").write_text(SIZES_FILE)
    asked = ["recommend", "--jobs", "jobs.yaml", "--objective", "sizes"]
    done = esprof(*asked, "-o", "sizes.json", cwd=tmp_path)
    assert "105 s of remaining time in total" in done.stdout  # `b` starts first, and gets the third device.
    assert "verified by an integer program" in esprof("recommend", "--check", "sizes.json", cwd=tmp_path).stdout
    stored = json.loads((tmp_path / "sizes.json").read_text())
    assert next(iter(stored)) == "schema"
    (tmp_path / "sizes.json").write_text(json.dumps(stored | {"value": 1.0}))
    refused = esprof("recommend", "--check", "sizes.json", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "states the value 1" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "exactly one of RUN, --jobs, --instance and --check"),
        (["run", "--objective", "makespan"], 2, "need --jobs"),
        (["--jobs", "jobs.yaml"], 2, "names no devices"),
        (["--jobs", "jobs.yaml", "--inventory", "none.yaml"], 1, "cannot be read"),
        (["--jobs", "jobs.yaml", "--inventory", "empty.yaml"], 1, "at least one device"),
        (["--jobs", "jobs.yaml", "--inventory", "gpus.yaml", "--objective", "cost"], 2, "price of A, C"),
        (["--jobs", "jobs.yaml", "--inventory", "other.yaml"], 1, "no throughput on any type"),
        (["--check", "gpus.yaml"], 1, "is neither a plan nor a result of recommend"),
        (["--check", "gpus.yaml", "-o", "plan.json"], 2, "-o needs RUN or --jobs"),
        (["--instance", "gpus.yaml", "--inventory", "gpus.yaml"], 2, "--inventory needs RUN or --jobs"),
        (["run", "--only", "assignment", "--mtbf", "3"], 2, "--mtbf needs RUN, and excludes --only"),
        (["run", "--restart", "3"], 2, "--restart needs --mtbf"),
        (["run", "--max-vnmse", "nan"], 2, "--max-vnmse must be a number"),
        (["--jobs", "jobs.yaml", "--only", "checkpoint"], 2, "--only needs RUN"),
        (["run", "--search", "--only", "loader"], 2, "--search needs RUN, and excludes --only"),
        (["--jobs", "jobs.yaml", "--search"], 2, "--search needs RUN"),
        (["run", "--try", "cache=0.5"], 2, "--try, --max-replays and --max-memory-gb need --search"),
        (["--jobs", "jobs.yaml", "--objective", "sizes", "--whole"], 2, "--objective sizes excludes --whole"),
        (["--jobs", "jobs.yaml", "--objective", "sizes"], 1, "unknown field"),
    ],
)
def test_bad_input(tmp_path, arguments, code, says):
    for name, text in {
        "jobs.yaml": JOBS_FILE,
        "gpus.yaml": "devices: {A: 1, C: 1}",
        "other.yaml": "devices: {C: 1}",
        "empty.yaml": "devices: {}",
    }.items():
        (tmp_path / name).write_text(text)
    done = esprof("recommend", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr


def test_predictions_for_compression_are_not_reported_as_verified(tmp_path):
    plan = tmp_path / "plan.json"
    write_plan(plan, planned(compression=part(CompressionBody())))
    done = esprof("recommend", "--check", plan)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be verified without the run" in done.stderr


def test_a_published_instance(tmp_path):
    channel = {"alpha_us": 10, "beta1_us_per_kB": {"pcie": 0.4}, "beta2_us_per_kB": 0.8, "nodes": 2, "gpus_per_node": 2}
    fast = {"total_us": [0, 1, 2, 3], "decode_us": [0, 0.5, 1, 1], "wire_ratio": 0.1}
    table = {"base_elements": 1 << 20, "gpu_compression": {"randomk": fast}, "communication": channel}
    (tmp_path / "compression_costs.json").write_text(json.dumps(table))
    instance = tmp_path / "instance.json"
    tensors = [{"name": "w", "numel": 1000}, {"name": "v", "numel": 5_000_000}]
    instance.write_text(json.dumps({"model": "vgg16", "tensors": tensors, "ready_gap_us": [0, 1500]}))
    done = json.loads(esprof("recommend", "--instance", instance, "--json").stdout)
    assert done.keys() == {"schema", "value_us", "gap_pct", "gap_kind", "choices"}
    assert (done["gap_kind"], len(done["choices"])) == ("exact", 2)
    assert "no choice is better" in esprof("recommend", "--instance", instance, "--as-shipped").stdout
    assert "--as-shipped needs --instance" in esprof("recommend", "--jobs", instance, "--as-shipped").stderr


def test_a_model_is_split_over_devices(tmp_path):
    layers, gpus, split = (tmp_path / name for name in ("layers.json", "gpus.yaml", "split.json"))
    times = {"V100": {"forward_us": 1000, "backward_us": 2000}}
    sizes = {"output_bytes": 0, "parameter_bytes": 10**7}
    layers.write_text(json.dumps({"layers": [{"name": name, "times": times, **sizes} for name in "abcd"]}))
    gpus.write_text("devices: {V100: 2}\nnetwork_gb_per_s: 0.1")
    wanted = ("recommend", layers, "--only", "parallel", "--inventory", gpus, "--batch", 8)
    done = esprof(*wanted, "-o", split)
    assert done.returncode == 0, done.stderr
    assert "Best plan: layers 1 on 1 V100, 1 on 1 V100, 1 on 1 V100, 1 on 1 V100 (interleaved)" in done.stdout
    assert "pp 2, dp 1, tp 1; ScheduleInterleaved1F1B over 8 microbatches" in done.stdout
    assert json.loads(esprof(*wanted, "--json").stdout) == json.loads(split.read_text())
    assert "verified" in esprof("recommend", "--check", split).stdout
    refused = esprof("recommend", tmp_path, "--only", "parallel", "--inventory", gpus, "--batch", 8)
    assert refused.returncode == 1
    assert "no Kineto trace" in refused.stderr
    assert esprof("recommend", layers, "--only", "parallel", "--inventory", gpus).returncode == 2


def test_a_described_transformer_is_split_with_its_tensors(tmp_path):
    gpt, gpus, split = (tmp_path / name for name in ("gpt.yaml", "gpus.yaml", "split.json"))
    gpt.write_text(
        "{schema: esprof.transformer/1, layers: 4, hidden: 4096, heads: 32, vocabulary: 51200, sequence: 2048,"
        " tflops: {A100: 150}, tokens: 1_000_000_000}"
    )
    gpus.write_text(
        "{devices: {A100: {count: 4, memory_gb: 6}}, network_gb_per_s: 25, server_gb_per_s: 250, per_server: 4}"
    )
    done = esprof("recommend", gpt, "--only", "parallel", "--inventory", gpus, "--batch", 64, "-o", split)
    assert done.returncode == 0, done.stderr
    assert "groups of 4 A100" in done.stdout
    assert "1.02 × 10⁹ parameters" in done.stdout
    assert "verified" in esprof("recommend", "--check", split).stdout
