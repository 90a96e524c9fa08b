"""How many samples and tokens a batch holds, by its shape; and the files in which loader workers note theirs."""

import os
import subprocess
from collections import UserDict

import pytest

torch = pytest.importorskip("torch")

from esprof.recorder.injected.steps import loader  # noqa: E402  needs torch
from esprof.recorder.injected.steps.batch import _MAX_MASK_ELEMENTS, padding, size  # noqa: E402

IMAGES, TOKENS, MASK = (
    torch.zeros(4, 3, 8, 8),
    torch.zeros(4, 16, dtype=torch.int64),
    torch.ones(4, 16, dtype=torch.bool),
)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, (4, None)),
        (TOKENS, (4, 64)),
        (MASK, (4, None)),
        ([IMAGES, torch.zeros(4)], (4, None)),
        ({"input_ids": TOKENS, "attention_mask": MASK}, (4, 64)),
        (UserDict(input_ids=TOKENS), (4, 64)),
        (("name", [TOKENS]), (4, 64)),
        (torch.tensor(3.0), (None, None)),
        ("no tensor at all", (None, None)),
        ([], (None, None)),
        ([[[[TOKENS]]]], (None, None)),
    ],
    ids=lambda value: "",
)
def test_the_first_tensor_tells_samples_and_whether_they_are_tokens(batch, expected):
    assert size(batch) == expected


HALF = (torch.arange(16).expand(4, 16) < 8).contiguous()


class Batch:
    def __init__(self, **tensors: object) -> None:
        vars(self).update(tensors)


class Odd(torch.Tensor):
    """A tensor of which nobody knows what reading it does."""


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": TOKENS, "attention_mask": MASK}, 0),
        ({"input_ids": TOKENS, "attention_mask": HALF}, 32),
        (UserDict(input_ids=TOKENS, attention_mask=HALF.long()), 32),
        (Batch(input_ids=TOKENS, attention_mask=HALF.int()), 32),
        ((IMAGES, {"attention_mask": HALF.short()}), 32),
        ({"attention_mask": HALF.T}, None),
        (TOKENS, None),
        ({"input_ids": TOKENS}, None),
        ({"attention_mask": HALF.float()}, None),
        ({"attention_mask": HALF[None]}, None),
        ({"attention_mask": HALF.tolist()}, None),
        ({"attention_mask": HALF.to("meta")}, None),
        ({"attention_mask": HALF.to_sparse()}, None),
        ({"attention_mask": HALF.as_subclass(Odd)}, None),
        ({"attention_mask": torch.zeros(1, _MAX_MASK_ELEMENTS + 1, dtype=torch.bool)}, None),
        (Batch(), None),
        ([], None),
    ],
    ids=lambda value: "",
)
def test_a_mask_on_the_cpu_tells_how_many_tokens_only_pad(batch, expected):
    assert padding(batch) == expected


def test_an_object_with_a_mask_tells_its_tokens():
    assert size(Batch(input_ids=TOKENS, attention_mask=HALF)) == (4, 64)


def test_counting_runs_no_operation_of_torch():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        padding({"input_ids": TOKENS, "attention_mask": HALF})
    assert not [event for event in profiler.events() if event.name.startswith("aten::")]


# The files of loader workers


def rows(path) -> list[str]:
    return [line.decode() for line in path.read_bytes().splitlines()]


def test_a_worker_writes_each_row_at_once_within_its_limit(tmp_path):
    log = loader._WorkerLog(str(tmp_path / "fetch.owner"), limit=400)
    for number in range(100):
        log.write("fetches", (number,))
    first, second = (tmp_path / f"fetch.owner.{os.getpid()}.roll.{n}.jsonl" for n in (0, 1))
    assert first.stat().st_size + second.stat().st_size <= 400
    assert max(rows(first)[-1], rows(second)[-1]) == '{"kind":"fetches","rows":[[99]]}'


def test_a_worker_with_the_process_id_of_an_earlier_one_keeps_its_file(tmp_path):
    for row in (("earlier",), ("later",)):
        loader._WorkerLog(str(tmp_path / "fetch.owner"), limit=1 << 20).write("stages", row)
    files = list(tmp_path.iterdir())
    assert {line for path in files for line in rows(path)} == {
        '{"kind":"stages","rows":[["earlier"]]}',
        '{"kind":"stages","rows":[["later"]]}',
    }
    assert {path.name.split(".")[-4] for path in files} == {str(os.getpid())}


def test_files_of_workers_that_are_gone_make_room_the_oldest_first(tmp_path):
    gone, here = subprocess.Popen(["true"]), os.getpid()
    gone.wait()
    for age, name in enumerate((f"fetch.me.{here}", f"fetch.me.0.{gone.pid}", f"fetch.me.{gone.pid}", "fetch.you.1")):
        path = tmp_path / f"{name}.roll.0.jsonl"
        path.write_bytes(bytes(8192))
        os.utime(path, (age, age))
    loader._make_room(str(tmp_path), "fetch.me.", limit=2 * 8192)
    left = {path.name.removesuffix(".roll.0.jsonl") for path in tmp_path.iterdir()}
    assert left == {f"fetch.me.{here}", f"fetch.me.{gone.pid}", "fetch.you.1"}
