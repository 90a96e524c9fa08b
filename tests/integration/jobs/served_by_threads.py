"""A server whose requests are served by a pool of threads: of modules alone, or of blocks."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import esprof

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()


@torch.no_grad()
def serve(requests: int) -> int:
    for _ in range(requests):
        if sys.argv[1] == "modules":
            net(torch.randn(16, 64))
        else:
            with esprof.step():
                net(torch.randn(16, 64))
        time.sleep(0.001)
    return requests


with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(serve, 4 * [100])))
