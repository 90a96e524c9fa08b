"""Trains a small language model whose batches are copied on a stream of their own, and waits in every way that CUDA knows:
a stream for an event, and the CPU for an event, for a stream (`.item()`) and for the device. Without a GPU nobody waits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu.jobs.common import Options, batches, carry_out, loss_of, network, parser, together


def main() -> None:
    options = parser(__doc__).parse_args()
    with together():
        carry_out("streams", steps(options), options)


def steps(options: Options) -> Iterator[float]:
    model = network(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    on_gpu = options.device == "cuda"
    arriving = copied(batches(options)) if on_gpu else batches(options)
    for tokens in arriving:
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        if on_gpu:
            computed = torch.cuda.Event()
            computed.record()
            computed.synchronize()
        optimizer.step()
        yield loss.item()
        if on_gpu:
            torch.cuda.synchronize()


def copied(arriving: Iterator[Tensor]) -> Iterator[Tensor]:
    """Each batch on the GPU, while the one behind it is copied there."""
    side = torch.cuda.Stream()

    def copy() -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.stream(side):
            tokens = next(arriving).to("cuda", non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            return tokens, done

    coming = copy()
    while True:
        tokens, done = coming
        coming = copy()
        now = torch.cuda.current_stream()
        now.wait_event(done)
        tokens.record_stream(now)  # Its memory belongs to the side stream, which must not reuse it too early.
        yield tokens


if __name__ == "__main__":
    main()
