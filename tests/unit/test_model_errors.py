"""The file of model errors, as benchmarks write it."""

import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from benchmarks import accuracy, assignments, compression, executed, model_errors, verified
from benchmarks.known import __main__ as known_jobs
from benchmarks.model_errors import CarriedOut
from esprof.replay.whatif.error.model_errors import MODEL_ERRORS_FILE, ModelErrors
from esprof.run.logs import LEDGER, Estimate, JobClass, ObservedOutcome


def read(file):
    return msgspec.json.decode(file.read_bytes(), type=ModelErrors)


def test_a_benchmark_writes_its_own_figures_and_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    before = read(file)
    model_errors.write(
        "assignments",
        "python -m benchmarks.assignments",
        "0, 1",
        {("cpu", "assign"): 0.171, ("cpu", "data"): 0.97},
        file,
    )
    after = read(file)
    source = after.sources["assignments"]
    assert (source.command, source.commit, source.seeds) == ("python -m benchmarks.assignments", "abc1234", "0, 1")
    assert after.errors["cpu"]["assign"] == {"assignments": 0.18}
    assert after.of("cpu") == before.of("cpu") | {"assign": 0.18, "data": 0.97}
    assert (after.of("gpu"), after.of("partial")) == (before.of("gpu"), before.of("partial"))


def test_a_figure_that_a_benchmark_does_not_find_again_goes_with_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    model_errors.write("assignments", "python -m benchmarks.assignments", "0", {}, file)
    assert "assign" not in read(file).errors["cpu"]
    assert "assignments" not in read(file).sources


def test_what_is_written_unchanged_is_the_file_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "c318612")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    known = read(file)
    found = {("busy", term): of["verified"] for term, of in known.errors["busy"].items()}
    model_errors.write("verified", known.sources["verified"].command, None, found, file)
    assert read(file).errors == known.errors


def test_what_was_carried_out_is_off_by_a_share_of_the_longer_step(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    answers = [CarriedOut("cpu", "assign", 100, 80, 90), CarriedOut("gpu", "data", 100, 200, 150)]
    assert [one.share_off for one in answers] == [0.1, 0.25]
    model_errors.write_carried_out("assignments", "python -m benchmarks.assignments", answers, file)
    after = read(file)
    assert after.errors["cpu"]["assign"] == {"assignments": 0.1}
    assert after.errors["gpu"]["data"]["assignments"] == 0.25
    assert (after.sources["assignments"].seeds, after.sources["assignments"].commit) == (None, "abc1234")


def test_planted_faults_say_by_how_much_prices_were_too_high_and_too_low(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    answers = [
        CarriedOut("cpu", "loops", 100, 80, 60),  # Twice as much was gained as predicted.
        CarriedOut("cpu", "straggler", 100, 80, 90),  # Half of it was.
        CarriedOut("cpu", "batch", 100, 80, 110),  # The change made it worse.
        CarriedOut("cpu", "python", 100, 90, 50),
    ]
    model_errors.write_planted("a set", "python -m benchmarks.diagnosis", "0", answers, file)
    after = read(file)
    of_set = [
        {term: of["a set"] for term, of in table.items() if "a set" in of}
        for table in (after.errors["cpu"], after.underestimates)
    ]
    assert of_set == [{"straggler": 0.1, "batch": 0.3}, {"loops": 0.2, "python": 0.4}]


def test_every_command_of_a_source_names_a_benchmark():
    for source in read(MODEL_ERRORS_FILE).sources.values():
        for command in source.command.split("; "):
            python, flag, module = command.split()[:3]
            assert (python, flag) == ("python", "-m")
            assert find_spec(module) is not None


def written(monkeypatch, module):
    """What a benchmark writes of what was carried out, as (source, command, answers)."""
    calls = []
    monkeypatch.setattr(
        module, "write_carried_out", lambda source, origin, found: calls.append((source, origin, [*found]))
    )
    return calls


def test_assignments_write_what_predictions_were_off_by(monkeypatch, tmp_path, capsys):
    calls = written(monkeypatch, assignments)
    answer = CarriedOut("cpu", "assign", 100, 80, 90)
    monkeypatch.setattr(assignments, "case", lambda *_: [answer])
    monkeypatch.setattr("sys.argv", ["assignments", "--cases", "0", "--keep", str(tmp_path), "--write-model-errors"])
    assignments.main()
    assert calls == [("assignments", "python -m benchmarks.assignments", [answer])]
    assert '"value": 11.11' in capsys.readouterr().out


def test_compression_writes_codecs_but_not_the_job_as_it_is(monkeypatch, tmp_path):
    calls = written(monkeypatch, compression)
    none, bf16 = CarriedOut("cpu", "compress", 100, 100, 120), CarriedOut("cpu", "compress", 100, 80, 90)
    monkeypatch.setattr(compression, "executed", lambda *_: [("none", none), ("bf16", bf16)])
    for name in ("searches", "heuristics"):
        monkeypatch.setattr(compression, name, lambda: None)
    options = ["--executed", "--write-model-errors", "--jobs", "mlp", "--rates", "none", "--keep", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["compression", *options])
    compression.main()
    assert calls == [("compression", "python -m benchmarks.compression --executed", [bf16])]


def test_executed_changes_are_written_by_their_means_over_repeats(monkeypatch, tmp_path):
    calls = written(monkeypatch, executed)
    took = iter(
        [{"before": 90.0, "predicted": 70.0, "after": 80.0}, {"before": 110.0, "predicted": 90.0, "after": 80.0}]
    )
    monkeypatch.setattr(executed, "carry_out", lambda *_: next(took))
    options = ["--jobs", "mlp", "--only", "cpu of rank 1 x2", "--keep", str(tmp_path), "--write-model-errors"]
    monkeypatch.setattr("sys.argv", ["executed", *options])
    executed.main()
    assert calls == [("executed", "python -m benchmarks.executed", [CarriedOut("cpu", "cpu", 100, 80, 80)])]


def test_verified_changes_are_written_for_the_class_that_the_run_has(monkeypatch, tmp_path):
    job = JobClass(backend="gloo", devices="CPU", world_size=2, gradients="DDP")
    steps = {name: Estimate(us=us) for name, us in (("before", 100), ("predicted", 80), ("observed", 90))}
    fixed = {"job": job, "by": "verify", "repeats": 3, "error_pct": -11.1, "held": True, "versions": {}}
    for id_, spec in (("a", "data[ready]=0"), ("b", "bucket_mb=2,compress=bf16")):
        terms = tuple(term.split("=")[0] for term in spec.split(","))
        LEDGER.append(tmp_path, ObservedOutcome(id=id_, spec=spec, terms=terms, **fixed, **steps))
    replayed = SimpleNamespace(pricer=SimpleNamespace(error=SimpleNamespace(job_class="busy")))
    monkeypatch.setattr(verified, "Replayed", SimpleNamespace(of=lambda _: replayed))
    monkeypatch.setattr(verified.esprof, "load", lambda _: None)
    assert [*verified.carried_out(tmp_path)] == [CarriedOut("busy", "data", 100, 80, 90)]


def test_accuracy_writes_what_a_pair_of_traces_shows_and_needs_no_run(monkeypatch):
    calls = written(monkeypatch, accuracy)
    answer = SimpleNamespace(predicted_us=80.0, reason=None)
    pricers = {
        "without": SimpleNamespace(answers=lambda _: [answer], measured_ns=np.array([90e3, 110e3])),
        "with": SimpleNamespace(measured_ns=np.array([90e3])),
    }
    monkeypatch.setattr(accuracy.esprof, "load", lambda source: source)
    monkeypatch.setattr(accuracy, "Replayed", SimpleNamespace(of=lambda run: SimpleNamespace(pricer=pricers[run])))
    monkeypatch.setattr("sys.argv", ["accuracy", "--write-model-errors", "without", "with"])
    accuracy.main()
    assert calls == [("public-traces", accuracy.PAIR_COMMAND, [CarriedOut("gpu", "data", 100, 80, 90)])]


@pytest.mark.parametrize(
    ("shape", "source", "name"),
    [(None, None, "known"), ("queue", None, "queue"), ("buckets", "real-links", "real-links")],
)
def test_simulated_jobs_are_written_under_the_source_asked_for(monkeypatch, shape, source, name):
    calls = []
    monkeypatch.setattr(known_jobs, "write", lambda *found: calls.append(found))
    known_jobs.write_model_errors([], shape, range(3, 5), source)
    of = (f" --class {shape}" if shape else "") + " --seed 3 --programs 2" + (f" --source {source}" if source else "")
    assert calls == [(name, f"python -m benchmarks.known{of}", "3 to 4", {})]
