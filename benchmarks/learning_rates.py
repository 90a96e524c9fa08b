"""A search for the learning rate against the best of a fixed grid, at the same number of steps, those of trials included.

    python -m benchmarks.learning_rates [--seeds 5] [--steps 600]

A small network predicts the next byte of the standard library's sources. For each seed it is trained with every rate of the
grid, and once by `LearningRateSearch` between the ends of the grid. Prints a JSON line for each seed, with the loss on bytes
of their own, and the median of the ratios to the best rate of the grid: above 1 the search is worse.
"""

import argparse
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from benchmarks.figures import show
from benchmarks.jobs.gpt import sources
from esprof.elastic import Data, ElasticTrainer, LearningRateSearch, Proof
from esprof.elastic.rates.search import RateStage

CONTEXT, LOW, HIGH, RATES = 8, 1e-3, 1.0, 6
_TRIAL_STEPS = 10
_EVALUATED = 4096
"""Bytes on which a training is judged."""


class Bytes(Dataset):
    def __init__(self, text: Tensor) -> None:
        self.windows = text.unfold(0, CONTEXT + 1, 1)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tensor:
        return self.windows[index]


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 128), nn.Tanh(), nn.Linear(128, 256)
        )


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]), batch[:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = torch.frombuffer(bytearray(sources()[:1_000_000]), dtype=torch.uint8).long()
    samples, judged = Bytes(text[: -_EVALUATED - CONTEXT]), Bytes(text[-_EVALUATED - CONTEXT :]).windows
    grid = np.geomspace(LOW, HIGH, RATES).tolist()
    ratios = []
    for seed in range(options.seeds):
        searched, stages, steps = _searched(samples, judged, seed, options.steps)
        fixed = {rate: _trained(samples, judged, seed, rate, steps) for rate in grid}
        best = min(fixed, key=lambda rate: fixed[rate])
        ratios.append(searched / fixed[best])
        show("learning_rate_search_loss", searched, "nats", {
            "seed": seed,
            "steps": steps,
            "steps_tried": sum(stage.tried_steps for stage in stages),
            "rates": [round(stage.rate, 4) for stage in stages],
            "best_fixed_loss": round(fixed[best], 4),
            "best_fixed_rate": round(best, 4),
            "median_fixed_loss": round(median(fixed.values()), 4),
        })  # fmt: skip
    show("learning_rate_search_ratio_to_best", median(ratios), "", {"seeds": options.seeds, "worst": max(ratios)})


def _trainer(samples: Bytes, seed: int, rate: float) -> ElasticTrainer:
    torch.manual_seed(seed)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    data = Data(samples, batch_size=32, seed=seed)
    return ElasticTrainer(model, optimizer, loss_of, data, n_est=1, proof=Proof(threads=1))


def _trained(samples: Bytes, judged: Tensor, seed: int, rate: float, steps: int) -> float:
    trainer = _trainer(samples, seed, rate)
    for _ in range(steps):
        trainer.step()
    return _judged(trainer, judged)


def _searched(samples: Bytes, judged: Tensor, seed: int, least: int) -> tuple[float, Sequence[RateStage], int]:
    """(loss, stages, number of steps) after at least so many steps, trials included."""
    trainer = _trainer(samples, seed, LOW)
    search = LearningRateSearch(
        trainer, low=LOW, high=HIGH, candidates=RATES, trial_steps=_TRIAL_STEPS, stage_steps=2 * RATES * _TRIAL_STEPS
    )
    for _ in search.fit(epochs=1):
        steps = trainer.next_step + sum(stage.tried_steps for stage in search.stages)
        if steps >= least:
            break
    return _judged(trainer, judged), search.stages, steps


@torch.no_grad()
def _judged(trainer: ElasticTrainer, judged: Tensor) -> float:
    loss = loss_of(trainer.state.model, judged).item()
    trainer.close()
    return loss


if __name__ == "__main__":
    main()
