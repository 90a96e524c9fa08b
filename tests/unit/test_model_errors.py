"""The file of model errors, as benchmarks write it."""

import shutil

import msgspec

from benchmarks import model_errors
from esprof.replay.whatif.error.model_errors import MODEL_ERRORS_FILE, ModelErrors


def read(file):
    return msgspec.json.decode(file.read_bytes(), type=ModelErrors)


def test_a_benchmark_writes_its_own_figures_and_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    before = read(file)
    model_errors.write(
        "diagnosis", "python -m benchmarks.diagnosis", "0, 1", {("cpu", "python"): 0.171, ("cpu", "data"): 0.07}, file
    )
    after = read(file)
    told = after.sources["diagnosis"]
    assert (told.command, told.commit, told.seeds) == ("python -m benchmarks.diagnosis", "abc1234", "0, 1")
    assert after.errors["cpu"]["python"] == {"diagnosis": 0.18}
    assert after.of("cpu") == before.of("cpu") | {"python": 0.18, "data": 0.07}
    assert (after.of("gpu"), after.of("partial")) == (before.of("gpu"), before.of("partial"))


def test_a_figure_that_a_benchmark_does_not_find_again_goes_with_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "abc1234")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    model_errors.write("diagnosis", "python -m benchmarks.diagnosis", "0", {}, file)
    assert "python" not in read(file).errors["cpu"]
    assert "diagnosis" not in read(file).sources


def test_what_is_written_unchanged_is_the_file_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(model_errors, "_commit", lambda: "c318612")
    file = tmp_path / "errors.json"
    shutil.copy(MODEL_ERRORS_FILE, file)
    known = read(file)
    found = {("busy", term): of["verified"] for term, of in known.errors["busy"].items()}
    model_errors.write("verified", known.sources["verified"].command, None, found, file)
    assert read(file).errors == known.errors
