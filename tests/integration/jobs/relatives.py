"""Trains in the middle of other processes: asks an unrelated Python before and after what it finds of us."""

import os
import subprocess
import sys

from steps import losses, model_and_optimizer

ASK = (
    "import os, sys; print('PYTHONPATH', os.environ.get('PYTHONPATH'), 'path', sys.path[1:],"
    " 'finders', len(sys.meta_path), 'variables', sorted(k for k in os.environ if 'ESPROF' in k or 'KINETO' in k))"
)


def ask() -> None:
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", ASK], check=True)


def main() -> None:
    if "LOCAL_RANK" in os.environ:
        ask()
    model, optimizer = model_and_optimizer()
    for _ in losses(model, 20):
        optimizer.step()
    ask()


if __name__ == "__main__":
    main()
