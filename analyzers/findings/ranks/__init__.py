"""ESP2xx: ranks and stragglers.

`stragglers.py` is the rule for slow ranks. `lateness.py` and `more_work.py` determine why they are slow, `sustained.py` in
how much of the run. `load_imbalance.py`: different ranks are late in different steps; `stages.py`: uneven pipeline stages.
"""
