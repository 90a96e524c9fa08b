"""The result of `replay` as text."""

from esprof.reports.terminal.replay import draw_replay
from tests.cases import report as case
from tests.cases.gold import assert_gold


def test_replay_layout():
    assert_gold("replay.txt", draw_replay(case.replay()))
