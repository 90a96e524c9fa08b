"""Workers that know only their number on this host until they join the process group, as Lightning starts them."""

import os

rank = int(os.environ.pop("RANK"))
world_size = int(os.environ.pop("WORLD_SIZE"))

import torch.distributed as dist  # noqa: E402  the recorder looks at the variables when torch is loaded
from steps import losses, model_and_optimizer  # noqa: E402


def main() -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model, optimizer = model_and_optimizer()
    for _ in losses(model, 20):
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
