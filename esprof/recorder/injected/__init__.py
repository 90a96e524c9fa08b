"""Code of the recorder that runs inside the job's own processes.

It runs as a guest: it imports only the standard library, torch and `shared`, with relative imports only (the start-up hook
loads the recorder's folder by its path, whether or not esprof is installed), writes only to the recording's folder `raw`,
and switches itself off at its first fault. The launcher converts `raw` to a Run after the end of the job.
"""

from collections.abc import Callable


def start(raw: str, hook: str, leave_environment: Callable[[], None]) -> None:
    """Start recording in a process that has just imported torch: watch its optimizers and DataLoaders.

    `leave_environment` removes the recorder from the environment that child processes inherit.
    """
    from .session import begin

    begin(raw, hook, leave_environment)
