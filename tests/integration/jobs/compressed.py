"""Trains with compressed gradients; each rank writes what came out to a file of its own in the folder that is named.

torchrun … compressed.py FOLDER SCENARIO [SPEC …]
"""

import json
import math
import socket
import sys
import time
import warnings
from hashlib import sha256
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import esprof
from esprof.core.errors import EsprofError
from esprof.core.plan import BucketChoice, CodecChoice, CompressionBody, GuardSettings
from esprof.elastic.compress import compress
from esprof.elastic.compress.canary import canary

STEPS = 300
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def made(*, views=False, how=None, **more):
    """A small model of three buckets, its optimizer, and its compression."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.005, gradient_as_bucket_view=views)
    compression = None if how is None else compress(ddp, how, **more)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.004, momentum=0.9), compression


def chosen(spec):
    """The choice that CODEC[@EXCHANGE[@TOPOLOGY]] stands for."""
    name, exchange, topology = [*spec.split("@"), "", ""][:3]
    return CodecChoice(codec=name, exchange=exchange or None, topology=topology or "flat")


def batch(step, rank=None):
    random = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    x = torch.randn(16, 20, generator=random)
    return x, x[:, :3].sum(dim=1, keepdim=True)


def train(ddp, optimizer, steps, begin=0, compression=None):
    loss = torch.zeros(())
    for step in range(begin, begin + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = ((ddp(x) - y) ** 2).mean()
        loss.backward()
        if compression is not None:
            compression.observe(loss.item())
        optimizer.step()
    return loss.item()


def bits(ddp):
    return sha256(b"".join(p.detach().numpy().tobytes() for p in ddp.module.parameters())).hexdigest()


@scenario
def codecs(*specs):
    """Each codec, 300 steps: bits, the last loss, bytes sent in the last step (and to other hosts), the buckets' sizes."""
    results = {}
    for spec in specs:
        how = CompressionBody(default=chosen(spec), guard=GuardSettings(every=10**9))
        ddp, optimizer, compression = made(how=how)
        train(ddp, optimizer, STEPS - 1)
        before, before_between = compression.sent_bytes, compression.sent_between_hosts_bytes
        loss = train(ddp, optimizer, 1, STEPS - 1)
        sizes = [sum(one.sizes.values()) for one in compression.buckets.known.values()]
        between = compression.sent_between_hosts_bytes - before_between
        results[spec] = [bits(ddp), loss, compression.sent_bytes - before, sizes, between]
        compression.close()
    return results


@scenario
def without():
    """What plain DDP comes to."""
    results = {}
    for views in (False, True):
        ddp, optimizer, _ = made(views=views)
        train(ddp, optimizer, STEPS)
        plain = bits(ddp)
        ddp, optimizer, compression = made(views=views, how="none")
        train(ddp, optimizer, STEPS)
        results[str(views)] = [plain, bits(ddp)]
        compression.close()
    return results


@scenario
def swapped(topology="flat"):
    """Choices that change in mid-run, at steps that all ranks agree on; then a checkpoint, and all again from there."""
    ddp, optimizer, compression = made(how="none", views=True)
    train(ddp, optimizer, 10)
    names = [list(one) for one in compression.buckets.known]
    listed = CompressionBody(default=chosen("sign"), warm_up_steps=0)
    compression.adopt(listed, at_step=15)
    train(ddp, optimizer, 20, 10)
    topk = CodecChoice(codec="topk:0.1", exchange="all_to_all", encoded_by="beside", topology=topology)
    compression.adopt(topk, at_step=30)
    train(ddp, optimizer, 10, 30)
    compression.adopt(CodecChoice(codec="int8", topology=topology), at_step=45)
    saved = json.dumps({"step": compression.step})
    kept = compression.state_dict(), [p.detach().clone() for p in ddp.parameters()], optimizer.state_dict()
    kept_optimizer = {i: {k: v.clone() for k, v in s.items()} for i, s in kept[2]["state"].items()}
    train(ddp, optimizer, 10, 40)
    first = bits(ddp)
    compression.close()
    again, optimizer, compression = made(how="none", views=True)
    with torch.no_grad():
        for parameter, value in zip(again.parameters(), kept[1], strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict({"state": kept_optimizer, "param_groups": kept[2]["param_groups"]})
    compression.load_state_dict(kept[0])
    # Before DDP fills its buckets anew, all is in one; what was not sent must go with its parameters.
    train(again, optimizer, 10, 40)
    events = [event.what for event in compression.events]
    compression.close()
    return {"first": first, "again": bits(again), "names": names, "saved": saved, "events": events}


@scenario
def planned():
    """A plan with a codec for the second bucket alone, from the third step on; and a loss that leaps."""
    second = BucketChoice(codec="int8", index=1, elements=(40, 800), encoded_by="beside")
    first = BucketChoice(codec="none", index=0, elements=(1, 40, 40, 1600))
    body = CompressionBody(buckets=(first, second), warm_up_steps=2, guard=GuardSettings(every=5, fallback="bf16"))
    ddp, optimizer, compression = made(how=body)
    results = {"codecs": []}
    for step in range(30):
        train(ddp, optimizer, 1, step, compression)
        results["codecs"].append([one.choice.codec for one in compression.buckets.known.values()])
    compression.observe(1e6)
    train(ddp, optimizer, 6, 30)
    results["then"] = [one.choice.codec for one in compression.buckets.known.values()]
    results["events"] = [event.what for event in compression.events]
    compression.close()
    try:
        made(how=CompressionBody(buckets=(first,)))
    except EsprofError as error:
        results["other"] = str(error)
    return results


@scenario
def nothing_is_lost(*specs):
    """While no parameter changes each gradient is the same for a batch: what arrives and what is left are all that came.

    Each choice holds for four steps, the first from the very first one on, in which DDP has other buckets; in the end comes
    one step of `none`."""
    ddp, _, compression = made(how=chosen(specs[0]))
    total, exact = torch.zeros(2521), torch.zeros(2521)
    for step in range(4 * len(specs) + 1):
        if step % 4 == 0:
            compression.adopt(chosen([*specs, "none"][step // 4]), at_step=step)
        x, y = batch(step)
        ddp.zero_grad()
        ((ddp(x) - y) ** 2).mean().backward()
        total += torch.cat([p.grad.ravel() for p in ddp.parameters()])
        exact += mean_gradient(ddp, step)
    compression.close()
    return {"off": float((total - exact).norm() / exact.norm())}


def mean_gradient(ddp, step):
    """The mean of all ranks' gradients, without an exchange."""
    total, world = torch.zeros(2521), dist.get_world_size()
    for rank in range(world):
        x, y = batch(step, rank)
        grads = torch.autograd.grad(((ddp.module(x) - y) ** 2).mean(), list(ddp.module.parameters()))
        total += torch.cat([grad.ravel() for grad in grads]) / world
    return total


@scenario
def guarded(topology="flat"):
    """A gradient that is not finite, and a codec that loses too much: both are given up, on all ranks alike."""
    results = {}
    for name, settings in {"lossy": GuardSettings(every=5, max_vnmse=0.1), "nan": GuardSettings(every=5)}.items():
        choice = CodecChoice(codec="topk:0.05", topology=topology)
        ddp, optimizer, compression = made(how=CompressionBody(default=choice, guard=settings))
        train(ddp, optimizer, 5)
        if name == "nan" and dist.get_rank() == 1:
            ddp.module[0].weight.register_hook(lambda grad: grad * float("nan"))
        train(ddp, optimizer, 2, 5)
        results[name] = sorted({event.what for event in compression.events})
        results[f"{name} choices"] = [
            [one.choice.codec, one.choice.topology] for one in compression.buckets.known.values()
        ]
        results[f"{name} looks"] = [
            [one.step, one.vnmse] for found in compression.inspections().values() for one in found
        ]
        compression.close()
    return results


@scenario
def wrong():
    """What is refused, with every rank going on."""
    results = {}
    ddp, optimizer, compression = made(how="none")
    mine = "bf16" if dist.get_rank() else "fp16"
    for name, call in {
        "differ": lambda: compression.adopt(mine, at_step=5),
        "unknown": lambda: compression.adopt("zip", at_step=5),
        "cannot": lambda: compression.adopt(CodecChoice(codec="int8", exchange="all_reduce"), at_step=5),
        "twice": lambda: compress(ddp, "bf16"),
    }.items():
        try:
            call()
        except EsprofError as error:
            results[name] = str(error)
    train(ddp, optimizer, 3)
    try:
        compression.adopt("bf16", at_step=1)
    except EsprofError as error:
        results["over"] = str(error)
    results["bits"] = bits(ddp)
    compression.close()
    return results


@scenario
def other_hosts():
    """Hierarchical exchanges that these hosts cannot have: refused, and the job goes on as it would have."""
    results = {"host": socket.gethostname()}
    try:
        made(how=CodecChoice(codec="bf16", topology="hierarchical"))
    except EsprofError as error:
        results["compress"] = str(error)
    ddp, optimizer, compression = made(how="none")
    train(ddp, optimizer, 3)
    try:
        compression.adopt(CodecChoice(codec="bf16", topology="hierarchical"), at_step=3)
    except EsprofError as error:
        results["adopt"] = str(error)
    train(ddp, optimizer, 3, 3)
    results["codec"] = [one.choice.codec for one in compression.buckets.known.values()]
    compression.close()
    return results


@scenario
def resumed_elsewhere():
    """A checkpoint whose ranks were together on other hosts."""
    ddp, optimizer, compression = made(how=CodecChoice(codec="sign", topology="hierarchical"))
    train(ddp, optimizer, 3)
    state, results = compression.state_dict(), {}
    state["hosts"] = state["hosts"][::-1]
    try:
        compression.load_state_dict(state)
    except EsprofError as error:
        results["refused"] = str(error)
    compression.adopt("sign", at_step=3)
    train(ddp, optimizer, 1, 3)
    state = compression.state_dict()
    state["hosts"] = state["hosts"][::-1]
    compression.load_state_dict(state)  # What is flat does not depend on the hosts.
    train(ddp, optimizer, 1, 4)
    results["bits"] = bits(ddp)
    compression.close()
    return results


@scenario
def accumulated(topology="flat"):
    """no_sync, and a loss scale that changes: residuals follow."""

    class Scaler:
        scale = 1024.0

        def get_scale(self):
            return self.scale

    results = {}
    for change in (False, True):
        scaler = Scaler()
        ddp, optimizer, compression = made(how=CodecChoice(codec="sign", topology=topology), scaler=scaler)
        for step in range(40):
            if change and step == 20:
                scaler.scale = 2.0
            optimizer.zero_grad()
            with ddp.no_sync():
                x, y = batch(2 * step)
                (((ddp(x) - y) ** 2).mean() * scaler.scale).backward()
            x, y = batch(2 * step + 1)
            (((ddp(x) - y) ** 2).mean() * scaler.scale).backward()
            for parameter in ddp.parameters():
                parameter.grad /= scaler.scale
            optimizer.step()
        results[str(change)] = [bits(ddp), compression.step]
        compression.close()
    return results


@scenario
def wrapped(results):
    """What apply_plan makes of a plan's file: buckets, codecs, and what it says of the rest."""

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ddp = esprof.apply_plan(model(), results, gradient_as_bucket_view=True)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.004), 4)
    codecs = [one.choice.codec for one in ddp.compression.buckets.known.values()]
    found = {"codecs": codecs, "cap": ddp.bucket_bytes_cap, "said": [str(one.message) for one in said]}
    ddp.compression.close()
    for name, other in {"wrapped": ddp, "model": nn.Linear(20, 1)}.items():
        try:
            esprof.apply_plan(other, results)
        except EsprofError as error:
            found[name] = str(error)
    return found


@scenario
def tried():
    """Canaries: a codec that loses next to nothing, and one that sends next to nothing."""

    def training(how, seed):
        torch.manual_seed(seed)
        model = DistributedDataParallel(nn.Linear(20, 1, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        compression = None if how is None else compress(model, how)
        for step in range(40):
            x, y = batch(1000 * seed + step)
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            yield loss.item()
        if compression is not None:
            compression.close()

    results = {}
    for spec in ("bf16", "topk:0.05"):
        found = canary(training, spec, seeds=(1, 2))
        results[spec] = [found.passed, found.gaps, found.interval, found.steps]
    for name, seeds, losses in (("seeds", (1,), [1.0]), ("lengths", (1, 2), None)):
        try:
            canary(lambda how, seed, losses=losses: losses or [1.0] * seed, "bf16", seeds=seeds)
        except EsprofError as error:
            results[name] = str(error)
    results["nan"] = canary(lambda how, seed: [math.nan if how else 1.0], "bf16").passed
    return results


@scenario
def by_hosts():
    """What holds of hierarchical exchanges as of flat ones, in one job: processes take longer to start than to train."""
    return {
        "swapped": swapped("hierarchical"),
        "guarded": guarded("hierarchical"),
        "accumulated": accumulated("hierarchical"),
        "plain": nothing_is_lost("none@@hierarchical"),
        "elsewhere": resumed_elsewhere(),
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = SCENARIOS[sys.argv[2]](*sys.argv[3:])
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and must not meet an interpreter on its way out.
