"""Keys of the samples of a batch, as the recorder notes them."""

import base64
import operator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from esprof.recorder.injected.steps.sample_keys import length_of, noted_keys  # noqa: E402  needs torch
from esprof.run.raw.sample_keys import FIRST_HASH  # noqa: E402


def noted(keys: object) -> list[int] | None:
    text = noted_keys(keys)
    return None if text is None else np.frombuffer(base64.b64decode(text), "<i8").tolist()


@pytest.mark.parametrize(
    "keys",
    [
        [3, 1, -1],
        (3, 1, -1),
        np.array([3, 1, -1]),
        [np.int32(3), 1, -1],
        [torch.tensor(3), torch.tensor(1), -1],
        [3, True, -1],
    ],
)
def test_an_index_is_noted_as_it_is(keys):
    assert noted(keys) == [3, 1, -1]


def test_other_keys_are_noted_by_a_hash_that_all_processes_share():
    first, second, third, fourth = noted(["a.jpg", ("shard", 7), 1 << 70, "a.jpg"])
    assert min(first, second, third) >= FIRST_HASH
    assert first == fourth == 6283390952416857977
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("keys", [[object()], [("a", object())], [None], [torch.zeros(2)], 5, [torch.tensor(1.5)]])
def test_objects_that_may_differ_between_processes_are_unknown(keys):
    assert noted(keys) is None


def test_an_iterator_is_left_for_the_job():
    keys = iter([1, 2])
    assert noted(keys) is None
    assert list(keys) == [1, 2]


def test_no_operation_appears_in_the_trace_of_the_job():
    with torch.profiler.profile() as profiler:
        noted([torch.tensor(3)])
        operator.index(torch.tensor(3))
    names = [event.name for event in profiler.events()]
    assert names.count("aten::item") == 1


def test_a_data_set_may_have_no_length():
    class Endless(torch.utils.data.Dataset):
        pass

    assert length_of(range(5)) == 5
    assert length_of(Endless()) is None
