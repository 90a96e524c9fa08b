"""Two ranks that use `esprof.ModelTravel` in wrong ways, and print what it says."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import esprof
from esprof.core.errors import UsageError


def say(wrong: Callable[[], object]) -> None:
    try:
        wrong()
    except (UsageError, ValueError) as error:
        print(error, flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    say(lambda: esprof.ModelTravel((torch.zeros(4 + dist.get_rank(), 2),), lambda model, batch: 1.0))
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    # The score of one model on one batch is too large; all ranks say so.
    travel = esprof.ModelTravel((torch.full((4, 2), 1.5 * dist.get_rank()),), lambda model, batch: batch.mean())
    say(lambda: travel.compare(model, every=4))
    say(lambda: travel.compare(model, every=0))
    assert [one.training for one in model.modules()] == [True, True, False], "modes are as before"
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and want the interpreter's lock once more.


if __name__ == "__main__":
    main()
