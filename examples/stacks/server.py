"""A server that answers requests, and waits in between: each request is a step.

esprof record -o run -- python examples/stacks/server.py
"""

import queue
import threading
import time

import torch
from torch import nn

import esprof


def clients(requests: "queue.Queue[torch.Tensor | None]") -> None:
    """Ask now and then, as clients would."""
    for _ in range(60):
        time.sleep(0.01)
        requests.put(torch.randn(8, 32, 128))
    requests.put(None)


@torch.inference_mode()
def main() -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(2))).eval()
    requests: queue.Queue[torch.Tensor | None] = queue.Queue()
    threading.Thread(target=clients, args=(requests,), daemon=True).start()
    answered = 0
    while (request := requests.get()) is not None:
        with esprof.step():
            model(request).softmax(-1).amax().item()
        answered += 1
    print(f"{answered} requests answered")


if __name__ == "__main__":
    main()
