"""Multiplies matrices of 16 bits: square ones as of a probe, others that fill the waves of an A100, one column more, and few
columns. With --compiled, torch.compile generates the code."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.gpu.jobs.common import Options, carry_out, parser

SIDE, ROWS, FULL, FEW = 4096, 2304, 1536, 8
SHRINK_ON_CPU = 32


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--compiled", action="store_true", help="compile the products by torch.compile")
    options = arguments.parse_args()
    carry_out("products", steps(options), options)


def shapes(device: str) -> list[tuple[int, int, int]]:
    """(rows, inner size, columns) of each product."""
    by = SHRINK_ON_CPU if device == "cpu" else 1
    side, rows, full = SIDE // by, ROWS // by, FULL // by
    return [(side, side, side), (rows, side, full), (rows, side, full + 1), (side, side, FEW)]


def steps(options: Options) -> Iterator[float]:
    made = partial(torch.randn, device=options.device, dtype=torch.bfloat16)
    pairs = [(made(rows, inner), made(inner, columns)) for rows, inner, columns in shapes(options.device)]

    def products() -> list[Tensor]:
        return [one @ other for one, other in pairs]

    multiply = torch.compile(products) if options.compiled else products
    pace = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    while True:
        results = multiply()
        pace.step()
        yield float(results[0][0, 0])


if __name__ == "__main__":
    main()
