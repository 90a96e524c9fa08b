"""The command line run within this process: the results of the installed command without its start-up time."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from unittest import mock

from esprof import cli


def esprof(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Result of `esprof ARGUMENTS…`, run in `cwd` if given."""
    words = ["esprof", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with (
        contextlib.chdir(cwd) if cwd else contextlib.nullcontext(),
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
    return subprocess.CompletedProcess(words, code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()
