"""How many samples and tokens a batch holds, by its shape."""

from collections import UserDict

import pytest

torch = pytest.importorskip("torch")

from esprof.tracer.injected.batch import size  # noqa: E402  needs torch

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
