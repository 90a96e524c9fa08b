"""How many samples and tokens a batch holds, by its shape; and the files in which loader workers note theirs."""

import dataclasses
import os
import subprocess
from collections import UserDict

import pytest

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import pad_sequence  # noqa: E402  needs torch

from esprof.recorder.injected.steps import loader  # noqa: E402  needs torch
from esprof.recorder.injected.steps.batch import _MAX_ELEMENTS, PaddedSequences, Padding, padding, padding_of, size  # noqa: E402

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
        ({"attention_mask": torch.zeros(1, _MAX_ELEMENTS + 1, dtype=torch.bool)}, None),
        (Batch(), None),
        ([], None),
    ],
    ids=lambda value: "",
)
def test_a_mask_on_the_cpu_tells_how_many_tokens_only_pad(batch, expected):
    found = padding(batch)
    assert (found and found.padding) == expected


LENGTHS = (512, 128, 64, 64, 300, 17, 480, 256)


def ids_of(lengths, width: int, pad: int = 0) -> torch.Tensor:
    """Token ids from 2 on, none of them `pad`, padded at the end."""
    ids = torch.full((len(lengths), width), pad)
    for row, length in enumerate(lengths):
        ids[row, :length] = 2 + (torch.arange(length) * 7 + row) % 90
    return ids


def mask_of(lengths, width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor([*lengths])[:, None]


def test_attention_wastes_more_than_other_layers():
    found = padding_of(LENGTHS, 512)
    assert found.padding / found.tokens == pytest.approx(0.5554, abs=5e-5)
    assert found.padding_pairs / found.pairs == pytest.approx(0.6791, abs=5e-5)


IDS, REAL = ids_of(LENGTHS, 512), mask_of(LENGTHS, 512)
EQUAL = ids_of([12] * 4, 16)
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 0, 0]])


@dataclasses.dataclass
class Sentences:
    words: torch.Tensor
    real: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        {"input_ids": IDS, "attention_mask": REAL},
        {"ids": IDS, "mask": REAL},
        {"src": IDS, "src_key_padding_mask": ~REAL},
        (IDS, ~REAL),
        Sentences(IDS, REAL.to(torch.uint8)),
        {"speech": torch.zeros(8, 512, 4), "pad_mask": ~REAL},
        {"speech": torch.zeros(8, 512, 4), "frame_mask": REAL},
        (IDS, torch.zeros(8)),
        {"tokens": IDS.flip(1).contiguous()},
        {"labels": IDS.masked_fill(~REAL, -100), "tokens": ids_of(LENGTHS, 512, pad=1)},
    ],
    ids=lambda value: "",
)
def test_masks_of_any_name_and_equal_ends_of_token_ids_tell_padding(batch):
    assert padding(batch) == padding_of(LENGTHS, 512)


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": EQUAL},  # equal lengths: the last columns may be anything
        {"ids": IDS.repeat_interleave(2, 0)[:, :4].contiguous()},  # too few columns
        {"columns": torch.tensor([[5, 0, 3, 0, 0, 0, 1, 0, 0], [1, 2, 0, 4, 0, 0, 0, 0, 0]])},  # zeros within rows
        {"labels": IDS.masked_fill(~REAL, -100)},
        {"ids": IDS[:, :17].contiguous(), "prompt": (torch.arange(17) > 8).expand(8, 17).contiguous()},
        {"ids": IDS[:, :17].contiguous(), "token_type_ids": (torch.arange(17) > 8).expand(8, 17).long().contiguous()},
        {"ids": ids_of([13], 16), "position_ids": POSITIONS},  # several sequences in a row
        {"speech": torch.zeros(8, 512, 4), "voiced": REAL},  # nothing says what True means
        {"mask": torch.rand(8, 32) < 0.5, "ids": ids_of([32] * 8, 32)},  # such as dropped tokens
    ],
    ids=lambda value: "",
)
def test_other_tensors_are_not_taken_for_padding(batch):
    assert padding(batch) is None


FRAMES = torch.where(REAL[..., None], 1 + torch.arange(512.0)[:, None] + torch.arange(4.0), 0)
"""Sequences of 4 numbers a frame, padded with zeros."""


@pytest.mark.parametrize(
    "batch",
    [
        (FRAMES, torch.tensor(LENGTHS)),
        (FRAMES - 1, torch.tensor(LENGTHS, dtype=torch.int32)),  # padded with another number
        {"lengths": torch.tensor(LENGTHS), "frames": FRAMES.transpose(0, 1).contiguous()},
        (
            FRAMES.half(),
            torch.tensor(LENGTHS),
            IDS[:, :16].contiguous(),
            torch.full((8,), 16),
        ),  # the largest one counts
        (FRAMES[..., 0].contiguous(), torch.tensor(LENGTHS)),
        (torch.where(torch.arange(512) == 3, 0, FRAMES[..., 0]), torch.tensor(LENGTHS)),  # silence within
        FRAMES,
        (FRAMES[..., 0].contiguous(), torch.arange(8)),
    ],
    ids=lambda value: "",
)
def test_lengths_and_equal_ends_tell_padding_of_numbers(batch):
    assert padding(batch) == padding_of(LENGTHS, 512)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.rand(8, 512), torch.tensor(LENGTHS)),  # other numbers, such as classes
        (torch.zeros(8, 512), torch.tensor(LENGTHS)),
        (torch.zeros(8, 4), torch.tensor([1, 2, 3, 4] * 2)),  # too few columns
        torch.where(torch.arange(512) == 3, 0, FRAMES[..., 0]),  # silence within, and no lengths
        (torch.rand(8, 3, 16, 16), torch.arange(8)),
        (torch.rand(8, 3, 16, 16), mask_of(range(1, 9), 10) * torch.rand(8, 10)),  # targets of pictures
        (torch.rand(8, 600), FRAMES[:, :40].clone(), torch.tensor(LENGTHS).clamp(max=40)),  # targets with lengths
        (torch.rand(8, _MAX_ELEMENTS // 8 + 1), FRAMES, torch.tensor(LENGTHS)),  # too large to be read
        REAL.float(),  # a mask, or levels
        (torch.nested.nested_tensor([torch.rand(9), torch.rand(12)]), torch.rand(8, 3)),
        (FRAMES.to("meta"), torch.tensor(LENGTHS)),
        (FRAMES.as_subclass(Odd), torch.tensor(LENGTHS)),
        FRAMES.as_subclass(Odd),
    ],
    ids=lambda value: "",
)
def test_other_numbers_are_not_taken_for_padding(batch):
    assert padding(batch) is None


def test_a_mask_tells_padding_of_equal_lengths():
    assert padding({"ids": EQUAL, "mask": EQUAL != 0}) == padding_of([12] * 4, 16)


def test_sequences_that_a_collate_function_pads_count_once():
    padded, original = PaddedSequences(), torch._C._nn.pad_sequence
    rows = [torch.zeros(length, 3) for length in (4, 2)]
    padded.begin()
    both = pad_sequence(rows, batch_first=True)
    pad_sequence([row[:, 0] for row in rows], batch_first=True, padding_value=-100)
    assert padded.end() == padding_of([4, 2], 4) == Padding(8, 2, 32, 12)
    assert both.shape == (2, 4, 3)
    assert torch._C._nn.pad_sequence is original
    pad_sequence(rows)
    padded.begin()
    assert padded.end() is None


def test_what_pad_sequence_refuses_is_refused():
    padded = PaddedSequences()
    padded.begin()
    with pytest.raises(RuntimeError):
        pad_sequence([])
    padded.end()


def test_an_object_with_a_mask_tells_its_tokens():
    assert size(Batch(input_ids=TOKENS, attention_mask=HALF)) == (4, 64)


def test_counting_runs_no_operation_of_torch():
    lengths = torch.tensor(LENGTHS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        padding({"input_ids": TOKENS, "attention_mask": HALF})
        padding((FRAMES, lengths))
        padding(FRAMES)
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
