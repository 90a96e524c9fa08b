"""How many samples and tokens a batch holds, by its shape; and the files in which loader workers note theirs."""

import os
import subprocess
from collections import UserDict

import pytest

torch = pytest.importorskip("torch")

from esprof.recorder.injected import loader  # noqa: E402  needs torch
from esprof.recorder.injected.batch import size  # noqa: E402

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
