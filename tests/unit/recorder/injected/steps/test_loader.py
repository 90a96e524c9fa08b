"""What the recorder notes of a DataLoader beside its batches: pinning, and how many batches a pass has."""

import time

import pytest

torch = pytest.importorskip("torch")

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker  # noqa: E402  needs torch
from esprof.recorder.injected.steps.loader import LoaderProbe, _batches  # noqa: E402
from esprof.run.raw.stages import PINNING  # noqa: E402

MS = 1_000_000


class FakeLog:
    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def roll(self, kind: str, row: tuple[object, ...]) -> None:
        self.rows.append(row)


@pytest.fixture
def probe() -> LoaderProbe:
    log = FakeLog()
    return LoaderProbe("raw", "hook", log, CircuitBreaker("recording of DataLoaders", log), 1 << 20)


def pinning(probe: LoaderProbe, took_s: float):
    """A stand-in for torch's `pin_memory`, which calls itself for each item of a list."""

    def pin(data: object, device: object = None) -> object:
        if isinstance(data, list):
            return [measured(item, device) for item in data]
        time.sleep(took_s)
        return data

    measured = probe._pinning(pin)
    return measured


def test_the_pinning_of_a_batch_is_one_stage(probe):
    assert pinning(probe, 0.002)([1, [2, 3]]) == [1, [2, 3]]
    ((name, start, end),) = probe._log.rows
    assert name == PINNING
    assert end - start >= 6 * MS


def test_a_short_pinning_is_not_noted(probe, monkeypatch):
    monkeypatch.setattr(time, "time_ns", iter(range(0, 10 * MS, MS // 20)).__next__)
    pinning(probe, 0)([1])
    assert probe._log.rows == []


def test_the_pinning_of_a_batch_that_the_rank_makes_is_a_part_of_it(probe):
    probe.making.begin()
    pinning(probe, 0.002)([1])
    assert list(probe.making.end().parts) == [PINNING]
    assert probe._log.rows == []


def test_a_failed_pinning_ends(probe):
    def broken(data: object) -> object:
        raise RuntimeError("out of memory")

    measured = probe._pinning(broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            measured(1)
    assert pinning(probe, 0.002)(1) == 1
    assert len(probe._log.rows) == 1


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self) -> int:
        raise AssertionError("the length of an iterable dataset has side effects in torch")


class Unmeasured(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(10))

    def __len__(self) -> int:
        raise RuntimeError("not known yet")


@pytest.mark.parametrize(
    ("dataset", "options", "batches"),
    [
        (range(10), {"batch_size": 4}, 3),
        (range(10), {"batch_size": None}, 10),
        (range(10), {"sampler": Unmeasured(), "batch_size": 4}, None),
        (Endless(), {"batch_size": 4}, None),
    ],
)
def test_how_many_batches_a_pass_has(dataset, options, batches):
    assert _batches(torch.utils.data.DataLoader(dataset, **options)) == batches
