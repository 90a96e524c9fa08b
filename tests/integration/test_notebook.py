"""`examples/notebook.ipynb` runs from top to bottom, and uses the whole API."""

import ast
import json
from pathlib import Path

import networkx as nx
import pandas as pd
import plotly.graph_objects as go
import pytest

import esprof

pytestmark = [pytest.mark.integration]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def cells():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def shown(source, namespace):
    """Run a cell. Returns the value of its last expression, which a notebook shows."""
    *statements, last = ast.parse(source).body
    exec(compile(ast.Module(statements, []), str(NOTEBOOK), "exec"), namespace)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)


def test_the_notebook_records_a_run_and_shows_it(monkeypatch):
    monkeypatch.delenv("ESPROF_RUN", raising=False)
    namespace = {}
    values = [shown(source, namespace) for source in cells()]
    kinds = [type(value) for value in values]
    assert kinds[0] is esprof.Run
    assert esprof.Analysis in kinds
    assert kinds.count(pd.DataFrame) >= 8
    assert kinds.count(go.Figure) == 3
    assert isinstance(namespace["path_graph"], nx.DiGraph)


def test_the_notebook_uses_every_table_graph_and_figure():
    source = "\n".join(cells())
    public = {name for name in vars(esprof.Analysis) if not name.startswith("_")}
    beside = {"answer", "diagnosis", "job", "replayed", "plot", "verdict"}
    assert not [name for name in public - beside if f"a.{name}(" not in source]
    assert not [name for name in ("breakdown", "timeline", "what_if") if f"a.plot.{name}(" not in source]
