"""Train a small network split over processes as `esprof recommend LAYERS --only parallel -o split.json` advises.

python examples/parallel.py                                             # the whole network in one process
torchrun --nproc-per-node 3 examples/parallel.py --split split.json     # one process for each device of the plan

The layers of the profile are those of `network`, in order: first, middle0, middle1, middle2, last.
"""

import argparse
import json
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor, parallel
from torch.utils.checkpoint import checkpoint

KINDS = 4


def network() -> nn.Sequential:
    """The layers by name, equal in all processes. Each takes what the one before it gives."""
    torch.manual_seed(0)
    widths = {"first": (256, 64), "middle0": (64, 64), "middle1": (64, 64), "middle2": (64, 64), "last": (64, KINDS)}
    layers = OrderedDict[str, nn.Module]()
    for name, (taken, given) in widths.items():
        parts = {"up": nn.Linear(taken, 128), "bend": nn.ReLU(), "down": nn.Linear(128, given)}
        layers[name] = nn.Sequential(OrderedDict(parts))
    return nn.Sequential(layers)


def batch_of(step: int, samples: int) -> tuple[Tensor, Tensor]:
    """Noisy pictures of stripes, as wide as their kind says."""
    noise = torch.randn(samples, 16, 16, generator=torch.Generator().manual_seed(step))
    kinds = torch.arange(samples) % KINDS
    return (noise + torch.arange(16) // (kinds[:, None, None] + 1) % 2).flatten(1), kinds


class Recomputed(nn.Module):
    """A module whose activations are computed again in the backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, taken: Tensor) -> Tensor:
        given: Tensor = checkpoint(self.module, taken, use_reentrant=False)
        return given


def module_of(stage: dict[str, Any], wanted: dict[str, Any], mesh: DeviceMesh) -> nn.Module:
    """The layers of one stage of the plan, as this rank has them."""
    model = network()
    names = [name for name, _ in model.named_children()]
    if missing := {stage["first"], stage["last"]} - set(names):
        sys.exit(f"the network has no layer {missing.pop()}, only {', '.join(names)}")
    module: nn.Module = model[names.index(stage["first"]) : names.index(stage["last"]) + 1]
    styles = {name: getattr(parallel, style)() for name, style in wanted["parallelize"].items()}
    if mesh["tp"].size() > 1 and not styles:
        sys.exit("the plan does not say how processes share a layer: describe the model with column_wise and row_wise")
    for layer in module.children() if styles else ():
        parallel.parallelize_module(layer, mesh["tp"], styles)
    if wanted["recompute"] == "layers":
        module = nn.Sequential(*map(Recomputed, module.children()))
    elif wanted["recompute"] == "stages":
        module = Recomputed(module)
    if wanted["fully_shard"]:
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    return module


def share_of(batch: Tensor, microbatches: int, mesh: DeviceMesh) -> Tensor:
    """The part of each microbatch that this replica computes: equal parts, one after the other."""
    parts = batch.unflatten(0, (microbatches, mesh["dp"].size(), -1))
    return parts[:, mesh["dp"].get_local_rank()].flatten(0, 1)


def average(module: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients of replicas, which have computed parts of the same microbatches."""
    for parameter in module.parameters():
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        gradient /= mesh["dp"].size()


def read_split(path: Path, number: int) -> tuple[dict[str, Any], int]:
    """The plan with this number, and the samples of a step."""
    advice = json.loads(path.read_text())
    if advice["schema"] != "esprof.parallel/1":
        sys.exit(f"{path} is no split of a model")
    if not 1 <= number <= len(advice["plans"]):
        sys.exit(f"{path} has {len(advice['plans'])} plans")
    plan = advice["plans"][number - 1]
    if plan["torch"] is None:
        sys.exit("the stages have unlike numbers of replicas: a DeviceMesh cannot express that")
    mesh, microbatches = plan["torch"]["mesh"], plan["microbatches"]
    if advice["batch"] // microbatches % mesh["dp"]:
        sys.exit("the replicas of a stage cannot share the samples of a microbatch equally")
    if plan["schedule"] == "zb1p" and microbatches % max(1, microbatches // mesh["pp"]):
        sys.exit(f"PyTorch does not run zb1p with {microbatches} microbatches on {mesh['pp']} stages")
    return plan, advice["batch"]


def train_split(path: Path, number: int, steps: int) -> None:
    """Train the stages of a plan, and print the loss of each step."""
    plan, batch = read_split(path, number)
    wanted, stages = plan["torch"], plan["stages"]
    sizes, microbatches = wanted["mesh"], wanted["microbatches"]
    dist.init_process_group("gloo")
    if dist.get_world_size() != (needed := sizes["pp"] * sizes["dp"] * sizes["tp"]):
        sys.exit(f"the plan needs {needed} processes: {sizes}")
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    mine = wanted["stages_of_rank"][mesh["pp"].get_local_rank()]
    modules = [module_of(stages[place], wanted, mesh) for place in mine]
    device, group = torch.device("cpu"), mesh.get_group("pp")
    parts = [
        pipelining.PipelineStage(module, place, len(stages), device, group=group)
        for place, module in zip(mine, modules, strict=True)
    ]
    # One stage accumulates gradients. The gradients of all schedules are those of the mean loss.
    schedule_class = getattr(pipelining, wanted["schedule"] or "Schedule1F1B")
    of_rank = parts[0] if issubclass(schedule_class, PipelineScheduleSingle) else parts
    schedule = schedule_class(of_rank, microbatches, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(nn.ModuleList(modules).parameters(), lr=0.3, momentum=0.9)
    is_first, is_last = 0 in mine, len(stages) - 1 in mine
    for step in range(steps):
        optimizer.zero_grad()
        pictures, kinds = (share_of(one, microbatches, mesh) for one in batch_of(step, batch))
        losses: list[Tensor] = []
        last = {"target": kinds, "losses": losses} if is_last else {}
        schedule.step(*([pictures] if is_first else []), **last)
        if not wanted["fully_shard"]:
            average(nn.ModuleList(modules), mesh)
        optimizer.step()
        if is_last:
            loss = torch.stack(losses).mean()
            dist.all_reduce(loss, group=mesh.get_group("dp"))
            if mesh["dp"].get_local_rank() == mesh["tp"].get_local_rank() == 0:
                print(f"step {step}: loss {loss.item() / sizes['dp']:.6f}", flush=True)
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


def train_whole(steps: int, batch: int) -> None:
    """Train the whole network in this process, and print the loss of each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        pictures, kinds = batch_of(step, batch)
        loss = nn.functional.cross_entropy(model(pictures), kinds)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", type=Path, help="the file that `esprof recommend --only parallel` wrote")
    parser.add_argument("--plan", type=int, default=1, help="which of its plans. Default: 1, the best")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="without --split: samples of a step")
    options = parser.parse_args()
    if options.split is None:
        train_whole(options.steps, options.batch)
    else:
        train_split(options.split, options.plan, options.steps)


if __name__ == "__main__":
    main()
