"""An elastic job for the tests that is asked to leave, or gets stuck, in the midst of a step; prints what befell it.

`--does` is a JSON list of [rank, step, what] for what a rank does in that step, `what` being one of:

    ["term"]             sends itself SIGTERM
    ["call", reason]     calls request_drain
    ["write", path]      makes a file
    ["term rank", r]     sends SIGTERM to rank r, which waits for this one meanwhile
    ["load"]             sends itself SIGTERM in the loader, which goes on for a while
    ["block"]            says so, and waits in C++ for ever
    ["sleep"]            sends itself SIGTERM, and sleeps for ever
    ["say"]              says so, and goes on once a line has come
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch.distributed as dist

from esprof.elastic import Assignment, Drain, Drained
from tests.cases.elastic import Samples, loss_fn
from tests.cases.elastic_job import small_trainer

SLOW_S = 1.5


class Done:
    """What this process has done. The lock keeps it out of the state of ESTs, each of which would have its own."""

    def __init__(self):
        self.numbers, self.lock = set(), threading.Lock()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--does", type=json.loads, default=[])
    parser.add_argument("--pids", type=Path, help="Folder where each rank leaves its number as a file.")
    parser.add_argument("--drain", type=json.loads, default={})
    parser.add_argument("--options", type=json.loads, default={}, help="Of ElasticTrainer, flat.")
    parser.add_argument("--ests", type=json.loads)
    parser.add_argument("--lingers", type=float, default=0, help="Seconds from its leaving to its end.")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    (asked.pids / f"rank-{rank}").write_text(str(os.getpid()))
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        asked.does = []
    done = Done()

    def doing(*, loads):
        for number, (who, step, what) in enumerate(asked.does):
            due = (
                who == rank
                and step == trainer.next_step
                and number not in done.numbers
                and (what[0] == "load") == loads
            )
            if due:
                done.numbers.add(number)
                yield what

    def loss(model, batch):
        for what in doing(loads=False):
            do(trainer, asked.pids, *what)
        return loss_fn(model, batch)

    class Slow(Samples):
        def __getitem__(self, index):
            for _ in doing(loads=True) if trainer is not None else ():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(SLOW_S)
            return super().__getitem__(index)

    trainer = None
    options = asked.options | ({"assignment": Assignment.of(asked.ests)} if asked.ests else {})
    trainer = small_trainer(loss=loss, samples=Slow(61, tokens=False), drain=Drain(**asked.drain), **options)
    tell(rank, "from", trainer.next_step)
    try:
        while trainer.next_step < asked.until:
            trainer.step()
    except Drained as drained:
        tell(rank, "left", drained.step, drained.reason, drained.code)
        time.sleep(asked.lingers)
        raise
    trainer.close()
    tell(rank, "ended", trainer.next_step)
    if "RANK" in os.environ:
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.


def do(trainer, pids, what, argument=None):
    rank = int(os.environ.get("RANK", 0))
    if what in ("term", "sleep"):
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "call":
        trainer.request_drain(argument)
    if what == "write":
        Path(argument).touch()
    if what == "term rank":
        time.sleep(SLOW_S)
        os.kill(int((pids / f"rank-{argument}").read_text()), signal.SIGTERM)
        time.sleep(SLOW_S)
    if what in ("say", "block"):
        tell(rank, what)
    if what == "say":
        sys.stdin.readline()
    if what == "block":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.wait(["what never comes"], timedelta(seconds=600))
    if what == "sleep":
        time.sleep(600)


def tell(*words):
    sys.stdout.write(json.dumps(words) + "\n")  # One write: ranks share the pipe.
    sys.stdout.flush()


if __name__ == "__main__":
    main()
