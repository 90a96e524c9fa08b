"""What a notebook asks of a Run: every table, graph and figure, against the JSON of the verbs."""

import json
import subprocess
import sys

import msgspec
import networkx as nx
import pandas as pd
import plotly.graph_objects as go
import pytest

import esprof
from esprof.analyzers import diagnose
from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.ops.over_ranks import Asked, ops_run
from esprof.api import graphs
from esprof.core.errors import InputError, UsageError
from esprof.replay import answer
from esprof.reports.charts import all_figures
from esprof.run.run import Run, Window
from tests.cases.flight import call, killed, run_of_flight, snapshot
from tests.cases.graph import ddp_rank, op, run_of, step

SLOW_MS = 10
SPECS = ["straggler=fix", "cpu=2x", "gpu=2x"]


def job():
    """Two ranks, of which the second comes 10 ms late to their only all-reduce."""
    return run_of({0: ddp_rank(), 1: ddp_rank(slow=SLOW_MS)})


@pytest.fixture(scope="module")
def analysis():
    return job().analyze()


def rows(structs):
    return json.loads(msgspec.json.encode(structs))


TRIED = {
    "repr(run)": lambda run, a: repr(run).startswith("<Run 2 ranks"),
    "run in a cell": lambda run, a: "<table" in run._repr_html_(),
    "run.step_times()": lambda run, a: set(run.step_times()["rank"]) == {0, 1},
    "run.events(0).to_pandas()": lambda run, a: "start_ns" in run.events(0).to_pandas(),
    "esprof.analyze(run)": lambda run, a: isinstance(esprof.analyze(run), esprof.Analysis),
    "esprof.diagnose(run)": lambda run, a: esprof.diagnose(run).findings,
    "repr of a diagnosis": lambda run, a: repr(esprof.diagnose(run)).startswith(f"<Diagnosis: {a.verdict}"),
    "repr(a)": lambda run, a: repr(a).startswith("<Analysis of <Run 2 ranks"),
    "a in a cell": lambda run, a: a.findings()["id"][0] in a._repr_html_(),
    "a.verdict": lambda run, a: a.verdict.endswith("."),
    "the worst finding": lambda run, a: a.findings().nlargest(1, "saving_us")["advice"].item(),
    "evidence of a finding": lambda run, a: len(a.evidence().query("finding == 'ESP201'")),
    "the slowest rank": lambda run, a: a.collectives().groupby("rank")["late_us"].mean().idxmax() == 1,
    "time by class": lambda run, a: a.critical_path().groupby("class", observed=True)["dur_us"].sum().sum() > 0,
    "the longest operations": lambda run, a: a.operations(top=1)["own_cpu_us"].item() > 0,
    "operations by name": lambda run, a: set(a.operations(pattern="linear")["name"]) == {"aten::linear"},
    "operations of each rank": lambda run, a: set(a.operations(by_rank=True)["rank"]) == {0, 1},
    "one scenario": lambda run, a: a.what_if("straggler=fix")["saving_us"].item() > 0,
    "one step": lambda run, a: set(a.timeline(steps=[1])["step"]) == {1},
    "path in networkx": lambda run, a: nx.is_directed_acyclic_graph(a.graph()),
    "whole graph": lambda run, a: len(a.graph(path_only=False)) == a.replayed.built.dfg.nodes,
    "who waits for whom": lambda run, a: not a.hang(),
    "process groups": lambda run, a: sorted(a.process_groups()["0-1"]) == [0, 1],
    "a plot as HTML": lambda run, a: "plotly" in a.plot.breakdown().to_html(include_plotlyjs=False).lower(),
}


@pytest.mark.parametrize("what", TRIED)
def test_what_a_notebook_user_tries_works(analysis, what):
    assert TRIED[what](analysis.run, analysis)


def test_the_tables_have_the_numbers_of_the_json(analysis):
    result, replayed = diagnose(analysis.run), answer(analysis.run, SPECS)
    found = analysis.findings()
    assert found.to_dict("list") == {
        name: [getattr(one, name) for one in result.findings] for name in found.columns if name != "evidence"
    }
    parts = analysis.breakdown()
    assert [f"{part}_us" for part in ACTIVITIES] == [
        name for name in parts if name.endswith("_us") and name != "step_us"
    ]
    for rank in result.breakdown:
        assert parts.loc[rank.rank, "step_us"] == rank.step_us
        assert [parts.loc[rank.rank, f"{part}_us"] for part in ACTIVITIES] == [
            getattr(rank, part) for part in ACTIVITIES
        ]
    scenarios = analysis.what_if(SPECS)
    assert json.loads(scenarios.to_json(orient="records", double_precision=15)) == rows(replayed.what_if)
    steps = analysis.steps()
    assert steps.drop(columns="left_out_for").to_dict("records") == rows(replayed.steps)


def test_the_evidence_is_that_of_the_findings(analysis):
    table = analysis.evidence()
    for finding in analysis.diagnosis.findings:
        mine = table[table["finding"] == finding.id]
        assert list(dict.fromkeys(mine["name"])) == list(finding.evidence)
        for name, seen in finding.evidence.items():
            values = list(seen.value.values()) if isinstance(seen.value, dict) else [seen.value]
            assert mine[mine["name"] == name]["value"].tolist() == values


def test_operations_are_those_of_the_verb(analysis):
    result = ops_run(analysis.run, Asked(top=100))
    table = analysis.operations()
    columns = ["name", "kind", "calls", "own_cpu_us", "total_cpu_us", "share_pct"]
    assert table[columns].to_dict("records") == [{name: getattr(one, name) for name in columns} for one in result.ops]
    of_ranks = analysis.operations(by_rank=True)
    assert of_ranks["own_cpu_us"].tolist() == [rank.own_cpu_us for one in result.ops for rank in one.by_rank]


def test_the_critical_path_sums_to_that_of_the_json(analysis):
    path, result = analysis.critical_path(), analysis.answer().critical_path
    assert path["dur_us"].sum() == pytest.approx(result.span_us)
    by_class = path.groupby("class", observed=False)["dur_us"].sum()
    assert {name: by_class[name] for name in result.classes} == pytest.approx(result.classes)
    by_rank = path.groupby("rank")["dur_us"].sum()
    assert {one.rank: by_rank[one.rank] for one in result.by_rank} == pytest.approx(
        {r.rank: r.us for r in result.by_rank}
    )
    ends = (path["start_us"] + path["dur_us"])[:-1].tolist()
    assert ends == pytest.approx(path["start_us"][1:].tolist())


def test_each_rank_arrives_when_it_was_there(analysis):
    table = analysis.collectives().set_index("rank")
    assert table["late_us"].to_dict() == {0: 0, 1: SLOW_MS * 1000}
    assert table["waited_us"].to_dict() == {0: SLOW_MS * 1000, 1: 0}
    assert table["transfer_us"].tolist() == [4000, 4000]
    assert table["moved_bytes"].tolist() == [4000, 4000]
    assert set(table["name"]) == {"gloo:all_reduce"}
    assert set(table["group"]) == {"0-1"}


def test_the_timeline_has_what_ran_where_and_when(analysis):
    table = analysis.timeline()
    (backward,) = table[
        (table["rank"] == 1) & (table["name"] == "autograd::engine::evaluate_function: AddmmBackward0")
    ].to_dict("records")
    # The call of the all-reduce, of 5 µs, is inside.
    assert (backward["start_us"], backward["dur_us"]) == ((10 + SLOW_MS) * 1000, 19_995)
    assert (backward["step"], backward["lane"], backward["class"]) == (1, "main", "compute")
    assert (table["dur_us"] > 0).all()


def test_the_path_as_a_graph_leads_from_one_end_to_the_other(analysis):
    graph, path = analysis.graph(), analysis.critical_path()
    ends = (
        [node for node in graph if graph.out_degree(node) == 0],
        [node for node in graph if graph.in_degree(node) == 0],
    )
    assert [len(one) for one in ends] == [1, 1]
    assert max(dict(graph.degree).values()) <= 2
    assert set(path["name"]) <= {graph.nodes[node]["name"] for node in graph}
    assert {"kind", "lag_us"} <= set(next(iter(graph.edges(data=True)))[2])
    assert set(graph.edges) <= set(analysis.graph(path_only=False).edges)


def test_the_path_through_no_step_is_an_empty_graph(analysis):
    assert len(analysis.graph(steps=[])) == 0


def test_a_graph_too_large_for_networkx_is_refused_with_what_to_ask_instead(analysis, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPH_NODES", 3)
    with pytest.raises(UsageError, match="path_only=True"):
        analysis.graph(path_only=False)
    assert len(analysis.graph()) > 3


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda a: a.what_if("gpu=fast"), "gpu"),
        (lambda a: a.timeline(steps=[7]), "no step 7.*\n.*step 1"),
        (lambda a: a.operations(pattern="("), "not a regular expression"),
        (lambda a: a.operations(sort="slowest"), "slowest(.|\n)*own-cpu"),
        (lambda a: a.operations(top=0), "leaves no operation"),
        (lambda a: a.timeline(steps=1), "not a list of steps"),
        (lambda a: a.what_if(None), "not None"),
        (lambda a: a.answer(["gpu=2x", 5]), "not 5"),
        (lambda a: a.plot.steps(), "without the profiler"),
        (lambda a: a.run.analyze(window=7), "step 7 is in no window"),
    ],
)
def test_what_cannot_be_answered_says_why(analysis, ask, said):
    with pytest.raises((UsageError, InputError), match=said) as error:
        ask(analysis)
    assert error.value.remedy


def test_the_figures_are_those_of_the_page(analysis):
    report = esprof.analyzers.summarize(analysis.run)
    page = {figure.id: figure for figure in all_figures(report)}
    plots = analysis.plot
    drawn = {
        "breakdown-chart": plots.breakdown(),
        "timeline-chart": plots.timeline(),
        "what-if-chart": plots.what_if(),
        "critical-path-chart": plots.critical_path(),
    }
    for name, figure in drawn.items():
        assert figure.to_plotly_json()["data"] == go.Figure(page[name].data).to_plotly_json()["data"]
        assert figure.layout.height == page[name].layout["height"]
    assert drawn["breakdown-chart"].layout.showlegend


def test_a_step_that_is_left_out_says_why():
    rows = [row for n in range(5) for row in (step(n, n * 1000, n * 1000 + 1000), op("aten::mm", n * 1000 + 10, 900))]
    table = run_of({0: rows}).analyze().steps()
    assert table["step"].tolist() == [0, 1, 2, 3, 4]
    assert table["left_out_for"][0] == "the window's first step"
    assert table["replayed_us"].isna().tolist() == [True, False, False, False, False]
    assert table["measured_us"].tolist() == [1000] * 5


def test_step_times_are_those_of_the_step_tables_in_microseconds(analysis):
    table = analysis.run.step_times()
    assert table[["rank", "step", "dur_us"]].to_dict("list") == {"rank": [0, 1], "step": [1, 1], "dur_us": [50_000] * 2}
    assert table["start_us"].tolist() == [0, 0]
    assert not [name for name in table if name.endswith("_ns")]


def test_names_of_a_trace_cannot_put_markup_into_a_notebook():
    hostile = "<script>alert(1)</script>"
    run = run_of({0: ddp_rank()}, hosts={0: hostile})
    assert hostile not in run._repr_html_() + run.analyze()._repr_html_()
    assert "&lt;script&gt;" in run._repr_html_()


def test_a_run_says_what_it_is():
    run = run_of({0: ddp_rank()}, world=4, windows=(Window(first=7, last=9), Window(first=11, last=12, stacks=True)))
    assert repr(run) == "<Run 1 of 4 ranks, steps 7–9>"


@pytest.mark.parametrize(
    ("command", "name"),
    [("torchrun --nproc-per-node 2 jobs/gpt.py x.py", "gpt.py"), ("python -m torch.distributed.run -m job", "job")],
)
def test_a_run_is_named_by_its_script_or_module(command, name):
    meta = msgspec.structs.replace(job().meta, command=tuple(command.split()))
    assert repr(Run(meta, lambda table, rank: None)) == f"<Run 2 ranks, {name}>"


def test_of_a_job_that_hung_before_its_window_the_findings_answer():
    waiting, elsewhere = snapshot(0, [call(1), call(2, over=False)]), snapshot(1, [call(1)])
    analysis = run_of_flight({0: killed(waiting), 1: killed(elsewhere)}).analyze()
    assert analysis.findings()["id"][0].startswith("ESP8")
    assert "1 finding" in repr(analysis)
    ((waits, awaited, about),) = analysis.hang().edges(data=True)
    assert (waits, awaited, about["kind"], about["collective"]) == (0, 1, "absent", "all_reduce")
    (waited,) = analysis.evidence().query("name == 'waited'")["value"]
    assert about["waited_us"] == waited / 1000
    assert analysis.findings()["id"][0] in analysis._repr_html_()
    with pytest.raises(InputError):
        analysis.timeline()


def test_the_import_brings_neither_pandas_nor_torch():
    code = "import sys, esprof; esprof.load; esprof.Run; print({'pandas', 'torch', 'plotly'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_tables_are_empty_where_there_is_nothing():
    rows = [step(1, 0, 1000), op("aten::mm", 10, 900)]
    analysis = run_of({0: rows}).analyze()
    for table in (analysis.findings(), analysis.evidence(), analysis.collectives(), analysis.what_if([])):
        assert isinstance(table, pd.DataFrame)
        assert not len(table)
        assert len(table.columns)
