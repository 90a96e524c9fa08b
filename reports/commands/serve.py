"""`esprof serve`."""

import ipaddress
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import click

from esprof.core.errors import EXIT_OK, EsprofError, MissingDependencyError, UsageError
from esprof.reports.live.lock import Lock

_MIN_TOKEN_CHARACTERS = 16
"""Characters of a token that nobody guesses."""


@click.command("serve")
@click.argument("runs", metavar="RUN…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; beyond this machine with a token."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes a free one.")
@click.option(
    "--token", metavar="TOKEN", envvar="ESPROF_SERVE_TOKEN", help="What a browser has to show (ESPROF_SERVE_TOKEN)."
)
def command(runs: tuple[Path, ...], host: str, port: int, token: str | None) -> int:
    """Serve a page of running elastic jobs, their plans and advice.

    RUN is what the job was given as ElasticTrainer(telemetry=RUN, placement=Placement(plan="RUN/plan.json")). On the
    page a person looks for advice, accepts or rejects it, and rolls plans back. All that is decided is kept in RUN: the
    server can be ended, and started again, at any time. A job that has ended can still be looked at.

    It listens on this machine alone; with another --host it asks for a token, and makes one where none is given. The
    address goes to stdout.

    \b
    esprof serve RUN
    esprof serve RUN OTHER_RUN --host 0.0.0.0
    """
    try:
        from esprof.reports.live.gate import Gate
        from esprof.reports.live.hub import Hub, names_of
        from esprof.reports.live.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        raise MissingDependencyError(
            f"serving needs {error.name}, which is not installed", remedy="pip install 'esprof[serve]'"
        ) from error
    folders = list(dict.fromkeys(run.resolve() for run in runs))
    for folder in folders:
        _make(folder)
    if token is not None and len(token) < _MIN_TOKEN_CHARACTERS:
        raise UsageError(f"a token needs {_MIN_TOKEN_CHARACTERS} characters, or it can be guessed")
    with ExitStack() as ends:
        locks = [ends.enter_context(Lock(folder)) for folder in folders]
        listener = ends.enter_context(_listen(host, port))
        address, port = listener.getsockname()[:2]
        at = ipaddress.ip_address(address)
        if token is None and not at.is_loopback:
            token = secrets.token_urlsafe(24)
        shown = socket.getfqdn() if at.is_unspecified else host
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        for lock in locks:
            lock.tell(url)
        gate = Gate(host, token)
        click.echo(url if token is None else f"{url}?token={quote(token, safe='')}")
        click.echo(f"Serving {', '.join(map(str, folders))}; Ctrl-C ends it", err=True)
        serve(Hub(names_of(folders), gate.page_token), gate, listener)
    return EXIT_OK


def _make(folder: Path) -> None:
    """Make the folder of a job that has not started yet, as the job would. Raises UsageError where that makes no sense."""
    if not folder.is_dir():
        if folder.exists() or not folder.parent.is_dir():
            raise UsageError(
                f"{folder} is no folder, and cannot be made",
                remedy="Name what the job was given as ElasticTrainer(telemetry=…).",
            )
        folder.mkdir(mode=0o700)
        click.echo(f"{folder} was not there: waiting for its job", err=True)


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the first address of the host. Raises EsprofError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()  # Who comes before the server is ready waits.
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise EsprofError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}",
            remedy="Choose another --port; 0 takes one that is free.",
        ) from error
    return listener
