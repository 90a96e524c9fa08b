"""ESP2xx: ranks and stragglers.

`stragglers.py` is the rule for slow ranks: why they are slow is in `lateness.py` and `more_work.py`, for how long in
`lasting.py`. `turns.py`: ranks that are late by turns; `stages.py`: uneven stages of a pipeline.
"""
