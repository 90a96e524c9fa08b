"""The trees of sampled stacks."""

import msgspec

from tests.cases import report as case


def test_a_tree_of_stacks_is_connected_and_callees_fit_their_caller():
    for tree in case.charts(case.report())["flame-chart"].data:
        values = dict(zip(tree["ids"], tree["values"], strict=True))
        assert tree["parents"][0] == ""
        for place, parent in list(zip(tree["ids"], tree["parents"], strict=True))[1:]:
            assert int(parent) < int(place)
        for place, value in values.items():
            callees = [
                values[child] for child, parent in zip(tree["ids"], tree["parents"], strict=True) if parent == place
            ]
            assert sum(callees) <= value + 1e-6


def test_a_function_has_its_source_location_and_time():
    chart = case.charts(case.report())["flame-chart"]
    (first, *others) = chart.data
    assert [first["visible"], *(tree["visible"] for tree in others)] == [True, False, False, False, False]
    assert first["labels"][:2] == ["training thread · 2,400 ms", "main"]
    assert first["customdata"][1] == ["train.py, at 88 (60.0 %), 91 (30.0 %)", 90.0]
    assert first["customdata"][-1] == ["", 50.0]
    assert "on a CPU" in first["hovertemplate"]
    unknown = msgspec.structs.replace(case.flame().trees[0], cpu_us=None)
    flame = case.charts(case.report(flame=msgspec.structs.replace(case.flame(), trees=(unknown,))))["flame-chart"]
    assert "on a CPU" not in flame.data[0]["hovertemplate"]


def test_deep_stacks_have_lower_levels():
    deep = tuple((f"f{n}", "a.py", "job", n - 1, 1.0, 1.0, ((1, 100.0),)) for n in range(150))
    chart = case.charts(case.report(flame=case.flame(1, deep)))["flame-chart"]
    assert chart.layout["height"] == 760
    assert len(chart.data) == 1
