"""Train a generator and a critic in turns. In the critic's turn, the generator's output has a gradient that nobody needs,
unless the argument is `detached`."""

import sys

import torch
from torch import nn


def main() -> None:
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    critic = nn.Linear(64, 1)
    for_generator = torch.optim.Adam(generator.parameters())
    for_critic = torch.optim.Adam(critic.parameters())
    for _ in range(12):
        drawn = generator(torch.randn(64, 64))
        if sys.argv[1:] == ["detached"]:
            drawn = drawn.detach()
        for_critic.zero_grad()
        (critic(drawn) - critic(torch.randn(64, 64))).mean().backward()
        for_critic.step()
        for_generator.zero_grad()
        (-critic(generator(torch.randn(64, 64)))).mean().backward()
        for_generator.step()


if __name__ == "__main__":
    main()
