"""Two workers that meet often: steps of a small model with ten all-reduces each, a pause before each of them."""

import sys
import time

import torch
import torch.distributed as dist
from steps import losses, model_and_optimizer


def main(steps: int, pause: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = model_and_optimizer()
    count = torch.ones(1)
    for _ in losses(model, steps):
        for _ in range(10):
            time.sleep(pause)
            dist.all_reduce(count)
        optimizer.step()
    # gloo's threads let go of a tensor after its wait has returned; one that does so while Python shuts down aborts.
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
