"""Trains a small language model whose forward and backward pass are captured as a CUDA graph once, and then replayed.

As https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture has it; the optimizer stays outside, so that
its steps can be counted. Without a GPU the passes just run.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.gpu.jobs.common import Options, batches, carry_out, loss_of, network, parser, together

WARMUP = 3
"""Passes before the capture, in which libraries set themselves up."""


def main() -> None:
    options = parser(__doc__).parse_args()
    with together():
        carry_out("graphed", steps(options), options)


def steps(options: Options) -> Iterator[float]:
    model = network(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    arriving = batches(options)
    held = next(arriving).to(options.device)

    def passes() -> Tensor:
        # Without gradients the backward pass makes them, within the graph's own memory, and a replay writes them anew.
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, held)
        loss.backward()
        return loss.detach()

    replay = captured(passes) if options.device == "cuda" else passes
    for tokens in arriving:
        held.copy_(tokens, non_blocking=True)
        loss = replay()
        optimizer.step()
        yield loss.item()


def captured(passes: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`passes` as a graph: a function that replays it, and returns the tensor that each replay writes its result to."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            passes()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = passes()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


if __name__ == "__main__":
    main()
