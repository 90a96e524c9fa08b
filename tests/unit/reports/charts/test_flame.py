"""The trees of sampled stacks."""

from itertools import pairwise

import msgspec
import pytest

from tests.cases import report as case


def test_callees_lie_within_their_caller_and_do_not_overlap():
    for tree, stacks in zip(case.charts(case.report())["flame-chart"].data, case.flame().trees, strict=True):
        bars = list(zip(tree["base"], tree["x"], tree["y"], strict=True))
        assert (bars[0][0], bars[0][2]) == (0.0, 0)
        for node, (begin, took, level) in zip(stacks.nodes, bars[1:], strict=True):
            caller_begin, caller_took, caller_level = bars[node.parent + 1]
            assert level == caller_level + 1
            assert caller_begin <= begin
            assert begin + took <= caller_begin + caller_took + 1e-3
        for level in set(tree["y"]):
            row = sorted((begin, begin + took) for begin, took, of in bars if of == level)
            assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(row))


def test_a_function_has_its_source_location_and_time():
    chart = case.charts(case.report())["flame-chart"]
    (first, *others) = chart.data
    assert [first["visible"], *(tree["visible"] for tree in others)] == [True, False, False, False, False]
    assert first["text"][:2] == ["training thread · 2,400 ms", "main"]
    assert first["customdata"][1] == ["train.py, at 88 (60.0 %), 91 (30.0 %)", "2,352 ms", "98.0 %", 90.0]
    assert first["customdata"][-1] == ["", "96.0 ms", "4.0 %", 50.0]
    assert "on a CPU" in first["hovertemplate"]
    unknown = msgspec.structs.replace(case.flame().trees[0], cpu_us=None)
    flame = case.charts(case.report(flame=msgspec.structs.replace(case.flame(), trees=(unknown,))))["flame-chart"]
    assert "on a CPU" not in flame.data[0]["hovertemplate"]


def test_deep_stacks_have_lower_levels():
    deep = tuple((f"f{n}", "a.py", "job", n - 1, 1.0, 1.0, ((1, 100.0),)) for n in range(150))
    chart = case.charts(case.report(flame=case.flame(1, deep)))["flame-chart"]
    assert chart.layout["height"] == 760
    assert chart.layout["yaxis"]["range"] == pytest.approx([150.5, -0.5])
    assert len(chart.data) == 1
