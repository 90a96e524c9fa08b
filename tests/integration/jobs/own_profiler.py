"""A job that profiles itself for a few steps, from a step that its argument names."""

import sys

from steps import losses, model_and_optimizer
from torch.profiler import profile


def main() -> None:
    first = int(sys.argv[1])
    model, optimizer = model_and_optimizer()
    profiler = profile()
    for step, loss in enumerate(losses(model, 30)):
        if step == first:
            profiler.start()
        if step == first + 3:
            profiler.stop()
        optimizer.step()
        print(step, loss.item().hex())
    names = {event.key for event in profiler.key_averages()}
    print("profiled", "aten::addmm" in names)


if __name__ == "__main__":
    main()
