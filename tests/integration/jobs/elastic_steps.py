"""An elastic job for the tests: trains to a step, from the last checkpoint if there is one, and says what befell it.

`--die-at STEP` kills rank 1 with SIGKILL in the midst of that step, the first time that torchrun starts it.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist

from esprof.elastic import Assignment
from esprof.errors import EsprofError
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import small_trainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--ests", type=json.loads, help="A list of ESTs for each rank.")
    parser.add_argument("--options", type=json.loads, default={}, help="Of ElasticTrainer.")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--threads", type=json.loads, default={}, help="Rank -> threads; 1 for the others.")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    options = asked.options | ({"assignment": Assignment.of(asked.ests)} if asked.ests else {})

    def loss(model, batch):
        if asked.die_at == trainer.next_step and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss_fn(model, batch)

    try:
        trainer = small_trainer(loss=loss, threads=asked.threads.get(str(rank), 1), **options)
        first = trainer.next_step
        while trainer.next_step < asked.until:
            trainer.step()
        if asked.save:
            trainer.save()
        trainer.flush()
        said = {"rank": rank, "first": first}
    except EsprofError as error:
        said = {"rank": rank, "error": str(error)}
    # One write: ranks share the pipe.
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    if "RANK" in os.environ:
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.1)  # gloo may abort a process that ends right after its last collective.


if __name__ == "__main__":
    torch.manual_seed(int(time.time()))  # Nothing may depend on what the process starts from.
    main()
