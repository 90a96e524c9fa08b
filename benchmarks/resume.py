"""Kill an elastic job at a random step, resume it, and count how often each item of its data was used.

    python -m benchmarks.resume [--kills 20] [--seed 0]

The job saves every 3 steps in the background. A step that was lost in the kill is repeated, so that only its last execution
counts. Prints a JSON line: the share of jobs that used each item of each epoch exactly once.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.figures import show
from esprof.elastic import Checkpoint, Data, ElasticTrainer

ITEMS, N_EST, BATCH, EPOCHS, EVERY = 96, 2, 3, 2, 3
STEPS = EPOCHS * ITEMS // (N_EST * BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # Set for the job itself.
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        train(options.folder, options.kill_at)
        return
    draw = random.Random(options.seed)
    exact = 0
    for number in range(options.kills):
        step = draw.randrange(1, STEPS)
        with tempfile.TemporaryDirectory() as folder:
            wrong = killed_and_resumed(Path(folder), step)
        exact += not wrong
        print(f"kill {number + 1}, in step {step}: {wrong or 'each item once'}", file=sys.stderr)
    show("resumed_exactly_once", exact / options.kills, "share", {"kills": options.kills, "seed": options.seed})


def killed_and_resumed(folder: Path, step: int) -> str:
    """What is wrong with the items that the job used; empty if each was used once in each epoch."""
    job = [sys.executable, "-m", "benchmarks.resume", "--folder", str(folder)]
    killed = subprocess.run([*job, "--kill-at", str(step)], check=False)
    assert killed.returncode == -signal.SIGKILL, "it kills itself"
    subprocess.run(job, check=True)
    used: dict[int, list[int]] = {}
    for line in (folder / "used.jsonl").read_text().splitlines():
        used |= {int(at): items for at, items in json.loads(line).items()}
    found = []
    for epoch in range(EPOCHS):
        steps = range(epoch * STEPS // EPOCHS, (epoch + 1) * STEPS // EPOCHS)
        counts = Counter(item for at in steps for item in used.get(at, []))
        wrong = {item: counts[item] for item in range(ITEMS) if counts[item] != 1}
        if wrong:
            found.append(f"epoch {epoch}: uses of items: {wrong}")
    return "; ".join(found)


def train(folder: Path, kill_at: int | None) -> None:
    """Train to the end, or to the middle of a step, and append the items of each step to a file."""
    items: list[int] = []

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        items.extend(batch.tolist())
        if trainer.next_step == kill_at and len(items) > BATCH:
            os.kill(os.getpid(), signal.SIGKILL)
        output: Tensor = model(batch.float()[:, None])
        return output.square().mean()

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = Data(range(ITEMS), batch_size=BATCH, num_workers=1)  # type: ignore[arg-type]  # torch takes any sequence.
    trainer = ElasticTrainer(
        model, optimizer, loss, data, n_est=N_EST, checkpoint=Checkpoint(folder / "saved", every=EVERY)
    )
    with (folder / "used.jsonl").open("a") as file:
        while trainer.next_step < STEPS:
            step = trainer.next_step
            items.clear()
            trainer.step()
            print(json.dumps({step: items[: N_EST * BATCH]}), file=file, flush=True)
    trainer.close()


if __name__ == "__main__":
    main()
