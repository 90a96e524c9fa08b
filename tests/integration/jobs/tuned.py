"""An elastic job for the tests that knows nothing of its being tuned: on rank 1 each EST takes longer. Ends with code 7."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch.distributed as dist

from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import small_trainer

SLOW_S = 0.03


def main():
    dist.init_process_group("gloo")

    def loss(model, batch):
        time.sleep(SLOW_S if dist.get_rank() == 1 else SLOW_S / 10)
        return loss_fn(model, batch)

    trainer = small_trainer(loss=loss, hash_log=sys.argv[2])
    while trainer.next_step < int(sys.argv[1]):
        trainer.step()
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.
    os._exit(7)


if __name__ == "__main__":
    main()
