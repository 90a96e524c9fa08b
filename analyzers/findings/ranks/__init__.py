"""ESP2xx: ranks and stragglers.

`stragglers.py` is the rule for slow ranks: `lateness.py` and `more_work.py` find out why they are slow, `sustained.py` for
how much of the run. `load_imbalance.py`: different ranks are late in different steps; `stages.py`: uneven pipeline stages.
"""
