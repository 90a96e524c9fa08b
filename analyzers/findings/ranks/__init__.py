"""ESP2xx: ranks and stragglers.

`stragglers.py` is the rule for slow ranks: why they are slow is in `lateness.py` and `more_work.py`, for how long in
`lasting.py`. `load_imbalance.py`: different ranks are late in different steps; `stages.py`: uneven stages of a pipeline.
"""
