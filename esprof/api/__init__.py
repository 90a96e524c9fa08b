"""The Python API for notebooks: pandas tables, networkx graphs and plotly figures of a Run.

The entry point is `esprof.load(path).analyze()`. This package only converts the results of other packages.
"""

from esprof.api.analysis import Analysis, analyze
from esprof.api.frames import step_times
from esprof.api.plots import Plots
from esprof.api.shown import run_html

__all__ = ["Analysis", "Plots", "analyze", "run_html", "step_times"]
