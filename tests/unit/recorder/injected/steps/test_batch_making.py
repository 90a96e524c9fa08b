"""Parts of a batch, and what the kernel counted while it was made."""

import threading
import time
from io import BytesIO

import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from esprof.recorder.injected.steps import batch_making  # noqa: E402  needs torch
from esprof.recorder.injected.steps.batch_making import MIN_READ_NS, BatchMaking  # noqa: E402

MS = 1_000_000


@pytest.fixture
def making(monkeypatch):
    """A batch maker, whose wrappers are removed after the test."""
    monkeypatch.setattr(batch_making, "_recognised", set())
    for module_name, class_name, name, _ in batch_making._KNOWN:
        module = batch_making.sys.modules.get(module_name)
        owner = getattr(module, class_name, None) if class_name else module
        if hasattr(owner, name):
            monkeypatch.setattr(owner, name, getattr(owner, name))
    return BatchMaking()


def test_the_time_of_an_inner_part_counts_for_that_part_only(making):
    making.begin()
    with making.part("decode") as is_part:
        time.sleep(0.01)
        with making.part("read"):
            time.sleep(0.03)
    made = making.end()
    assert is_part
    assert made.parts["read"][0] >= 30 * MS
    assert 10 * MS <= made.parts["decode"][0] < made.parts["read"][0]
    assert made.parts["read"][1] < 10 * MS, "a sleep takes no CPU time"


def test_nothing_is_measured_outside_of_a_batch_or_on_another_thread(making):
    with making.part("before") as before:
        pass
    making.begin()
    inside = []

    def elsewhere() -> None:
        with making.part("elsewhere") as is_part:
            inside.append(is_part)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (before, inside, making.end().parts) == (False, [False], {})


def test_a_failed_part_leaves_no_part_open(making):
    making.begin()
    with pytest.raises(ValueError, match="broken"), making.part("decode"):
        raise ValueError("broken")
    with making.part("collate"):
        pass
    assert list(making.end().parts) == ["decode", "collate"]


def test_decoders_of_pillow_are_recognised(making):
    file = BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    making.begin()
    Image.open(file).load()
    assert list(making.end().parts) == ["decode"]


def test_counters_are_read_of_batches_that_follow_a_long_one(making, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    making.begin()
    time.sleep(2 * MIN_READ_NS / 1e9)
    assert making.end().counters == (None, None, None)
    making.begin()
    (tmp_path / "file").read_bytes()
    counters = making.end().counters
    assert counters.read_chars >= 100_000
    assert counters.read_bytes == 0, "just written, so in the page cache"
    assert counters.ready_ns >= 0
