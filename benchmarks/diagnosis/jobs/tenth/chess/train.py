"""Trains a chess player's policy and value on positions of its latest games, generation after generation.

python train.py --files FOLDER
"""

import copy
import gc
import multiprocessing
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import read_arguments
from benchmarks.diagnosis.jobs.tenth.chess.network import Player
from benchmarks.diagnosis.jobs.tenth.chess.replay import CAPACITY, Replay, Samples, unpack

BATCH = 64
WIDTH = 48
BLOCKS = 5
GENERATION = 8
GAMES = 4
SAVE_EVERY = 8
RATE_EVERY = 24
ANCHOR_WEIGHT = 0.1


def loss_of(net, anchor, batch):
    """Cross-entropy with the search's visits and the result, and the divergence from the generation before."""
    planes, moves, visits, results = batch
    policy, value = net(planes)
    chances = policy.log_softmax(1)
    former = anchor(planes)[0].log_softmax(1)
    imitation = -(visits * chances.gather(1, moves)).sum(1).mean()
    divergence = F.kl_div(chances, former, reduction="batchmean", log_target=True)
    return imitation + F.cross_entropy(value, results) + ANCHOR_WEIGHT * divergence


@torch.inference_mode()
def rate(net, puzzles):
    """Share of the puzzles whose move the policy prefers."""
    planes, solutions = puzzles
    net.eval()
    solved = (net(planes)[0].argmax(1) == solutions).float().mean().item()
    net.train()
    return solved


def save(state, file):
    unfinished = Path(f"{file}.{os.getpid()}")
    torch.save(state, unfinished)
    unfinished.replace(file)


# FAULT resume
def positions(replay, count):
    """The latest ones, so that a job that is continued need not wait for games."""
    ring = (replay.boards, replay.moves, replay.visits, replay.results)
    latest = range(replay.added - count, replay.added)
    return [tuple(values[number % CAPACITY].clone() for values in ring) for number in latest]


# END FAULT


# FAULT trees
class Node:
    """A position in a search; children know their parents, so that results can be passed up."""

    def __init__(self, parent=None):
        self.parent = parent
        self.children = []
        self.visits = 0

    def expand(self, width, depth):
        self.children = [Node(self) for _ in range(width)]
        if depth > 1:
            for child in self.children:
                child.expand(width, depth - 1)


# END FAULT


# FAULT arena
@torch.inference_mode()
def play_matches(net, opponent, published, moves):
    """Plays the newest player against the first one, each time that it is published."""
    torch.set_num_threads(1)
    opponent.eval()
    while True:
        published.acquire()
        challenger = copy.deepcopy(net).eval()
        boards = torch.randint(2**62, (1, 12))
        for move in range(moves):
            policy, _ = (opponent if move % 2 else challenger)(unpack(boards))
            boards = boards ^ (1 << policy.argmax() % 62)


# END FAULT


def main():
    options = read_arguments(steps=72, needs_files=True)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    replay = Replay()
    replay.add(256)
    net = Player(WIDTH, BLOCKS)
    anchor = copy.deepcopy(net).eval().requires_grad_(False)
    # FAULT anchor
    if options.fault == "anchor":
        anchor.tower[-round(options.strength) :].requires_grad_(True)
    # END FAULT
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.005, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=True
    )
    puzzles = unpack(replay.boards[:BATCH]), replay.moves[:BATCH, 0].clone()
    generation, persistent = GENERATION, True
    # FAULT generations
    if options.fault == "generations":
        generation, persistent = round(options.strength), False
    # END FAULT
    samples = Samples(replay, BATCH, generation)
    loader = DataLoader(
        samples, batch_size=None, num_workers=1, persistent_workers=persistent, multiprocessing_context="fork"
    )
    # FAULT arena
    if options.fault == "arena":
        forking = multiprocessing.get_context("fork")
        public, published = copy.deepcopy(net).share_memory(), forking.Semaphore(0)
        terms = (public, copy.deepcopy(net), published, round(options.strength))
        for _ in range(os.cpu_count()):
            forking.Process(target=play_matches, args=terms, daemon=True).start()
    # END FAULT
    # FAULT trees
    finished = 0.0
    # END FAULT
    step = 0
    while step < options.steps:
        for batch in loader:
            loss = loss_of(net, anchor, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # FAULT trees
            if options.fault == "trees":
                finished += options.strength
                while finished >= 1:
                    Node().expand(6, 4)
                    gc.collect()
                    finished -= 1
            # END FAULT
            step += 1
            if step % RATE_EVERY == 0:
                print(f"step {step}, loss {loss.item():.3f}, {rate(net, puzzles):.0%} solved", flush=True)
            if step % SAVE_EVERY == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                # FAULT resume
                if options.fault == "resume":
                    state["replay"] = positions(replay, round(options.strength))
                # END FAULT
                save(state, options.files / "latest.pt")
            if step == options.steps:
                break
        anchor.load_state_dict(net.state_dict())
        replay.add(GAMES)
        # FAULT arena
        if options.fault == "arena":
            public.load_state_dict(net.state_dict())
            for _ in range(os.cpu_count()):
                published.release()
        # END FAULT


if __name__ == "__main__":
    main()
