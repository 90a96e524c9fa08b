"""`esprof serve` stays answering, whatever clients do to its port, and tells its token to nobody."""

import http.client
import resource
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cases import live, record

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOKEN = "a-token-of-many-characters"
HOST = "Host: 127.0.0.1"


@pytest.fixture(autouse=True)
def many_files():
    """Let this process have many sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def serving(folder, *words, **variables):
    """(process, port) of a server of a job, whose stderr is in the file `said`."""
    command = [*record.ESPROF, "serve", str(live.running(folder / "run")), "--port", "0", *words]
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(
            command, env=record.environment(**variables), text=True, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        try:
            yield process, int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        finally:
            process.kill()


def connected(port, *lines):
    """A socket on which these lines of a request were sent."""
    found = socket.create_connection(("127.0.0.1", port), timeout=30)
    found.sendall("".join(f"{line}\r\n" for line in lines).encode())
    return found


def status(port, path="/jobs/1", method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def memory(process):
    """Resident memory of a process, MiB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


CROWDS = {
    "silent": [],
    "with half a head": ["GET / HTTP/1.1", HOST],
    "with half a body": ["POST /jobs/1/accept HTTP/1.1", HOST, "Content-Length: 4000", "", "from="],
    "that read a stream": ["GET /jobs/1/events HTTP/1.1", HOST, ""],
}


def test_crowds_of_idle_clients_keep_nobody_out(tmp_path):
    with serving(tmp_path) as (process, port), ExitStack() as ends:
        assert status(port) == 200
        before = memory(process)
        for lines in CROWDS.values():
            for _ in range(230):
                ends.enter_context(connected(port, *lines))
            assert status(port) == 200
        with connected(port, *CROWDS["that read a stream"]) as stream:
            assert stream.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 450
        assert memory(process) - before < 100


def test_a_huge_body_is_refused_and_takes_no_memory(tmp_path):
    with serving(tmp_path) as (process, port):
        assert status(port) == 200
        before = memory(process)
        for path in ("/jobs/1/accept", "/jobs/1", "/nowhere"):
            with connected(port, f"POST {path} HTTP/1.1", HOST, "Content-Length: 1000000000", "") as sender:
                try:
                    for _ in range(500):
                        sender.sendall(bytes(100_000))
                except OSError:  # The answer has come, and the connection has ended.
                    pass
        assert memory(process) - before < 30
        assert status(port, "/jobs/1/accept", "POST", b"x" * 5000) == 413


def test_the_token_is_in_no_list_of_processes_and_no_log(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for words, variables in ((["--token-file", tmp_path / "token"], {}), ([], {"ESPROF_SERVE_TOKEN": TOKEN})):
        with serving(tmp_path, *map(str, words), **variables) as (process, port):
            assert status(port) == 401
            assert status(port, f"/?token={TOKEN}") == 303
            assert status(port, f"/jobs/{'9' * 5000}?token={TOKEN}", Authorization=f"Bearer {TOKEN}") == 404
            with connected(port, f"GET /?token={TOKEN} HTTP/9.9", ""):
                time.sleep(0.1)
            assert status(port, Authorization=f"Bearer {TOKEN}") == 200
            assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        assert TOKEN not in (tmp_path / "said").read_text()
