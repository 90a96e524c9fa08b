"""Planted faults: jobs with one known fault each, and what `esprof diagnose` says of them.

`cases.py` says what a job, a fault and a case are, `first.py` to `fifth.py` list them, and `jobs/` holds the scripts.
`carrying_out.py` records, `places.py` knows where a fault lies in its script, `judge.py` holds what was said against
what was planted and measured, `tables.py` prints it.
"""
