"""What a script may call besides DDP: FSDP2 on a mesh, groups, objects, functional collectives. For one real rank of two."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl", init_method="env://")
rank, ranks = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("all",))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
for part in (*model, model):
    if list(part.parameters()):
        fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

objects: list[object] = [None] * ranks
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": rank}] * ranks, objects
own = ["mine"]
dist.broadcast_object_list(own, src=0)
assert own == ["mine"]
alone = dist.new_group([rank])
other = dist.new_group([1 - rank], backend="gloo")
assert other is dist.GroupMember.NON_GROUP_MEMBER
dist.all_reduce(torch.ones(2), group=alone)
work = dist.all_reduce(torch.ones(2), async_op=True)
work.wait()
dist.isend(torch.ones(1), 1 - rank).wait()
dist.irecv(torch.ones(1), 1 - rank).wait()
summed = functional.all_reduce(torch.ones(2), "sum", mesh["all"].get_group())
assert summed.tolist() == [1, 1]
dist.barrier()
dist.destroy_process_group()
print("all ended")
