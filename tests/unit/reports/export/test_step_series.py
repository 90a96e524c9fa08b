"""Series over the steps, as lines for Weights & Biases and as event files, which TensorBoard's own reader reads."""

import io
import json
import sys

import pytest

from esprof.analyzers.tracks.step_series import StepSeries
from esprof.core.errors import MissingDependencyError
from esprof.reports.export.event_file import EVENT_FILE, require_tensorboard, write_event_file
from esprof.reports.export.step_lines import write_step_lines
from tests.cases.exported import cpu_run
from tests.cases.graph import EPOCH_NS


@pytest.fixture(scope="module")
def series():
    return StepSeries.of(cpu_run())


def test_lines_are_flat_numbers_under_the_keys_of_wandb(series):
    file = io.BytesIO()
    write_step_lines(series, file)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["_runtime"] for row in rows] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    assert rows[0]["_timestamp"] == pytest.approx(EPOCH_NS / 1e9 + 0.05)
    assert {type(value) for row in rows for value in row.values()} <= {int, float}
    assert rows[2]["esprof/step_time_ms"] == 50


def test_tensorboard_reads_scalars_and_the_verdict(series, tmp_path):
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    with (tmp_path / EVENT_FILE).open("wb") as file:
        write_event_file(series, file)
    found = reading.EventAccumulator(str(tmp_path)).Reload()
    by_tensor = {tag: found.Tensors(tag) for tag in found.Tags()["tensors"]}
    (verdict,) = by_tensor.pop("esprof/verdict")
    assert (verdict.step, verdict.tensor_proto.string_val[0].decode()) == (5, series.verdict)
    assert set(by_tensor) == set(series.series)
    times = by_tensor["esprof/step_time_ms"]
    assert [(one.step, one.tensor_proto.float_val[0]) for one in times] == [(step, 50) for step in range(6)]
    assert [one.wall_time for one in times] == pytest.approx([end / 1e9 for end in series.end_ns], abs=1e-6)
    assert [one.step for one in by_tensor["esprof/wait_pct"]] == [1, 2, 3, 4, 5]


def test_without_tensorboard_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(MissingDependencyError, match="not installed") as error:
        require_tensorboard()
    assert error.value.remedy == "pip install 'esprof[tensorboard]'"
