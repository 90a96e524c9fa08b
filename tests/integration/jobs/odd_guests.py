"""Jobs that do what a guest in their process might not expect; each is what it would be without one."""

import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path


def fork_and_exit() -> None:
    """A child that was forked inside a window trains on, and leaves by the front door."""
    train(9)
    child = os.fork()
    if child == 0:
        train(20)
        sys.exit(3)
    print("child left with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train(20)


def threads() -> None:
    """One thread trains after the other, and the main thread in between."""
    for steps in (10, 16):
        thread = threading.Thread(target=train, args=(steps,))
        thread.start()
        thread.join()
        train(3)


def close_files() -> None:
    """Closes all files that it does not know, as daemons do, and opens its own."""
    train(4)
    os.closerange(3, 256)
    files = [Path(f"mine-{number}") for number in range(8)]
    handles = [file.open("w") for file in files]
    train(40)
    print("mine", [file.stat().st_size for file in files], len(handles))


def deaf() -> None:
    """Nobody can be told anything: stderr is on a full device."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    os.rename(os.environ["VICTIM"], f"{os.environ['VICTIM']}.gone")
    train(20)


def asks_first() -> None:
    """Whether torch is there, before it is imported, as many libraries do."""
    print(importlib.util.find_spec("torch") is not None)
    train(20)


def two_trainings() -> None:
    """One after the other, with the first optimizer still alive."""
    kept = train(12)
    train(200)
    print(len(kept.param_groups))


def signalled() -> None:
    """Gets a scheduler's warning, and takes note of it."""
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append("heard"))
    train(5)
    os.kill(os.getppid(), signal.SIGUSR1)
    for _ in range(100):
        if not heard:
            signal.sigtimedwait([], 0.1)
    print(heard)


def talks() -> None:
    """Prints megabytes, in pieces that end anywhere but with a line."""
    piece = "".join(f'{{"step": {number}}}\n' for number in range(100_000))
    for begin in range(0, len(piece), 65_521):
        sys.stdout.write(piece[begin : begin + 65_521])
        sys.stdout.flush()
    train(30)
    sys.stdout.write("[half a line")


def closes_stdout() -> None:
    """Has no more to say on stdout, and closes it for itself and its children; its own file gets the number."""
    print("that is all", flush=True)
    os.close(1)
    with Path("mine").open("w") as mine:
        print("mine", mine.fileno(), file=mine, flush=True)
        train(30)


def train(steps: int) -> object:
    from steps import losses, model_and_optimizer

    model, optimizer = model_and_optimizer()
    last = 0.0
    for loss in losses(model, steps):
        optimizer.step()
        last = loss.item()
    print(f"{steps} steps, loss {last.hex()}", flush=True)
    return optimizer


if __name__ == "__main__":
    globals()[sys.argv[1]]()
