"""Labels that a job passes, as they come to the log."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402  needs torch

from esprof.recorder.injected import labels as module  # noqa: E402
from esprof.recorder.injected.labels import LabelCounts  # noqa: E402
from esprof.recorder.injected.log.notes import Log  # noqa: E402


@pytest.fixture
def log() -> Log:
    return Log()


def noted(log: Log) -> list[dict[int, int]]:
    return [counts for _, counts in log.tail("labels")]


@pytest.mark.parametrize(
    "labels",
    [
        [3, 1, 3, -100],
        (3, 1, 3),
        np.array([[3], [1], [3]], np.uint8),
        torch.tensor([3, 1, 3, -1]),
        torch.tensor([[3, 1], [3, -100]], dtype=torch.int32),
    ],
)
def test_whole_numbers_are_counted_and_negative_ones_ignored(log, labels):
    counts = LabelCounts(log)
    counts.count(labels)
    counts.write()
    assert noted(log) == [{1: 1, 3: 2}]
    assert all(type(key) is int for key in noted(log)[0])


def test_batches_are_added_up_and_written_once(log):
    counts = LabelCounts(log)
    for _ in range(5):
        counts.count([1, 2])
    assert noted(log) == []
    counts.write()
    counts.write()
    assert noted(log) == [{1: 5, 2: 5}]


def test_a_row_is_written_when_the_last_one_is_old(log, monkeypatch):
    monkeypatch.setattr(module, "_PERIOD_S", 0.0)
    counts = LabelCounts(log)
    counts.count([1])
    counts.count([2])
    assert noted(log) == [{1: 1}, {2: 1}]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (torch.tensor([0.5, 0.5]), "labels have the type float32, and are not whole numbers"),
        (["cat", "dog"], "are not whole numbers"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "labels on meta cannot be read without a wait"),
        (np.arange(1 << 17), "there are more than 65,536 classes"),
        (None, "are not whole numbers"),
    ],
)
def test_other_labels_end_the_counting_with_one_message(log, capsys, labels, reason):
    counts = LabelCounts(log)
    counts.count(labels)
    counts.count(labels)
    counts.count([1])
    counts.write()
    said = capsys.readouterr().err
    assert said.count("counting of labels failed") == 1
    assert reason in said
    assert "the job continues" in said
    assert noted(log) == []


def test_counting_leaves_no_operation_in_the_jobs_trace(log):
    counts, labels = LabelCounts(log), torch.tensor([1, 2])
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        counts.count(labels)
    assert not [event.name for event in profiler.events() if event.name.startswith("aten::")]
