"""The part of the recorder that runs inside the job's own processes.

It is a guest there: it imports the standard library, torch and `shared` and nothing else, by relative imports only (the
start-up hook loads the recorder's folder by its place, whether or not esprof is installed), writes to the recording's `raw`
folder alone, and switches itself off at its first fault. The launcher turns `raw` into a Run when the job has ended.
"""

from collections.abc import Callable


def start(raw: str, hook: str, leave_environment: Callable[[], None]) -> None:
    """Begin in a process that has just imported torch: watch its optimizers and DataLoaders.

    `leave_environment` takes the recorder out of what the process's children inherit.
    """
    from .session import begin

    begin(raw, hook, leave_environment)
