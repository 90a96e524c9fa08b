"""An elastic job whose number of processes changes, and which notes when its processes do what: for benchmarks.scaling.

    python -m benchmarks.jobs.scaled FOLDER [--pause SECONDS] [--until STEP]

FOLDER gets checkpoints, hashes, a Run and `moments.jsonl`, and may hold a plan. The model has 4 MB.
"""

import time

_SCRIPT_NS = time.time_ns()  # Before what takes long to import.

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from esprof.elastic import Checkpoint, Data, Drain, Drained, ElasticTrainer, Placement, Proof  # noqa: E402

N_EST = 4
WIDTH = 1024
"""A square layer of so many has 4 MB."""


def main() -> None:
    imported_ns = time.time_ns()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pause", type=float, default=0.005, help="Seconds that each batch takes besides.")
    parser.add_argument("--until", type=int, help="Train up to this step, on one process, and do nothing else.")
    asked = parser.parse_args()
    if asked.until is not None:
        static = trainer(asked.folder, asked.pause)
        while static.next_step < asked.until:
            static.step()
        static.close()
        return
    dist.init_process_group("gloo")
    rank, world, group_ns = dist.get_rank(), dist.get_world_size(), time.time_ns()
    elastic = trainer(asked.folder, asked.pause, placement=Placement(plan=asked.folder / "plan.json"), drain=Drain())

    def note(what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "rank": rank, "world": world, "ns": time.time_ns(), **more}) + "\n"
        with (asked.folder / "moments.jsonl").open("a") as file:
            file.write(line)

    moments = {"started_ns": started_ns(), "script_ns": _SCRIPT_NS, "imported_ns": imported_ns, "group_ns": group_ns}
    note("made", pid=os.getpid(), **moments)
    try:
        while True:
            done = elastic.step()
            if rank == 0:
                note("step", step=done.step)
    except Drained as drained:
        if rank == 0:
            note("saved", step=drained.step)
        raise


def trainer(folder: Path, pause_s: float, **more: Any) -> ElasticTrainer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    numbers = torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(1))

    def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
        time.sleep(pause_s)
        return model(batch[0]).square().mean()

    return ElasticTrainer(
        model,
        optimizer,
        loss_of,
        Data(TensorDataset(numbers), batch_size=2),
        N_EST,
        checkpoint=Checkpoint(folder / "checkpoints", every=20),
        proof=Proof(prove_every=0, hash_log=folder / "hashes.jsonl"),
        telemetry=folder / "run",
        **more,
    )


def started_ns() -> int:
    """When this process was started, since the Unix epoch, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(age_s * 1e9)


if __name__ == "__main__":
    main()
