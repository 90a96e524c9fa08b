"""A training whose backward pass holds an operation of 30 ms that computes, or one that sleeps.

idle_operation.py compute|sleep
"""

import sys
import time

import torch
from torch import nn

LENGTH_S = 0.03


def compute():
    until = time.thread_time() + LENGTH_S
    while time.thread_time() < until:
        pass


class Hook(torch.autograd.Function):
    """Does what a hook may do to gradients: nothing to their values."""

    @staticmethod
    def forward(context, activations):
        return activations.clone()

    @staticmethod
    def backward(context, gradients):
        WORK()
        return gradients


WORK = {"compute": compute, "sleep": lambda: time.sleep(LENGTH_S)}[sys.argv[1]]
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    Hook.apply(model(torch.ones(4, 8))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
