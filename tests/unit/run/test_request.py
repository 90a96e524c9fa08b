"""Asking a running job for its telemetry."""

import os

import pytest

from esprof.run import request
from esprof.run.request import TelemetryRequest


def test_telemetry_is_asked_for_by_a_file(tmp_path):
    assert request.waiting(tmp_path) is None
    request.ask(tmp_path, TelemetryRequest(since=7))
    assert request.waiting(tmp_path) == TelemetryRequest(since=7)
    assert request.is_open(tmp_path)
    request.withdraw(tmp_path)
    request.withdraw(tmp_path)
    assert not request.is_open(tmp_path)


@pytest.mark.timeout(30)
def test_a_pipe_asks_for_nothing(tmp_path):
    os.mkfifo(tmp_path / "telemetry.request")
    assert request.waiting(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"since": "x"}', b"\xff"])
def test_what_is_no_request_asks_for_nothing(tmp_path, content):
    (tmp_path / "telemetry.request").write_bytes(content)
    assert request.waiting(tmp_path) is None
