"""An elastic job for the tests, in processes of its own: trains to a step, and prints what befell it.

`--die-at STEP` kills rank 1 with SIGKILL in the midst of that step, the first time that torchrun starts it.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch.distributed as dist

from tests.cases.elastic_job import trained


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--ests", type=json.loads, help="A list of ESTs for each rank.")
    parser.add_argument("--options", type=json.loads, default={}, help="Of ElasticTrainer, flat.")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--pause", type=float, default=0.0, help="After each step, in seconds.")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    die_at = asked.die_at if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" else None
    befell = trained(asked.until, asked.ests, asked.options, die_at=die_at, pause_s=asked.pause)
    # One write: ranks share the pipe.
    sys.stdout.write(json.dumps(befell) + "\n")
    sys.stdout.flush()
    if "RANK" in os.environ:
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.


if __name__ == "__main__":
    main()
