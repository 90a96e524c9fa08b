"""Hashes of tensors: each bit of each element counts, and its place."""

import pytest
import torch

from esprof.elastic.verify.content import checksum, content

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


def numbers(dtype, count=200_000):
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return (100 * drawn.abs()).to(dtype) if dtype != torch.bool else drawn > 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("at", [0, 70_000, -1])
def test_a_single_element_counts(dtype, at):
    tensor = numbers(dtype)
    other = tensor.clone()
    other[at] = ~other[at] if dtype == torch.bool else other[at] + 1
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(other)
    assert content(tensor) != content(other)


def test_the_place_counts():
    tensor = numbers(torch.float32)
    assert len({checksum(tensor), checksum(tensor.flip(0)), checksum(tensor.roll(1 << 16))}) == 3


def test_signs_and_scales_do_not_cancel():
    tensor = numbers(torch.float32)
    flipped = tensor.clone()
    flipped[[3, 70_000]] *= -1
    assert len({checksum(one) for one in (tensor, flipped, -tensor, 2 * tensor, torch.zeros_like(tensor))}) == 5


def test_a_view_is_hashed_as_what_it_holds():
    tensor = numbers(torch.float64).view(400, 500)
    assert content(tensor.T) == content(tensor.T.contiguous())
    assert content(tensor[::2, 1]) == content(tensor[::2, 1].clone())
    assert content(tensor) != content(tensor.view(500, 400))
