"""The Python API: what a notebook asks of a Run, as pandas tables, networkx graphs and plotly figures.

`esprof.load(path).analyze()` is the way in. Everything here shapes answers that the layers below give; it computes none.
"""

from esprof.api.analysis import Analysis, analyze
from esprof.api.frames import step_times
from esprof.api.plots import Plots
from esprof.api.shown import run_html

__all__ = ["Analysis", "Plots", "analyze", "run_html", "step_times"]
