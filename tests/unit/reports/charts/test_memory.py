"""The curves of memory."""

import msgspec

from esprof.reports.charts import memory
from tests.cases import report as case

GIB = 1 << 30


def test_the_chart_shows_a_limit_only_if_usage_is_near_it():
    use = case.memory(ranks=2)
    assert memory.draw(use).layout["shapes"] == []
    near = tuple(msgspec.structs.replace(rank, limit=40 * GIB) for rank in use.ranks)
    chart = memory.draw(msgspec.structs.replace(use, ranks=near))
    (line,) = chart.layout["shapes"]
    assert line["y0"] == 40.0 < chart.layout["yaxis"]["range"][1]
    assert [trace["name"] for trace in chart.data if trace["showlegend"]] == ["rank 0", "rank 1"]


def test_each_phase_has_a_bar_for_each_rank():
    chart = case.charts(case.report(ranks=2))["memory-phases-chart"]
    assert [trace["name"] for trace in chart.data] == ["rank 0", "rank 1"]
    assert chart.data[1]["x"] == ["forward", "backward", "optimizer"]
    assert chart.data[1]["y"] == [29.0, 33.0, 12.0]
    unknown = [msgspec.structs.replace(r, forward=None, backward=None, optimizer=None) for r in case.memory().ranks]
    assert memory.draw_phases(msgspec.structs.replace(case.memory(), ranks=tuple(unknown))) is None


def test_a_rank_has_one_colour_in_both_charts():
    use = case.memory(ranks=2)
    unsampled = msgspec.structs.replace(use.ranks[0], forward=None, backward=None, optimizer=None)
    use = msgspec.structs.replace(use, ranks=(unsampled, use.ranks[1]))
    (phases,) = memory.draw_phases(use).data
    (curve,) = (trace for trace in memory.draw(use).data if trace["name"] == "rank 1")
    assert phases["marker"]["color"] == curve["line"]["color"]
