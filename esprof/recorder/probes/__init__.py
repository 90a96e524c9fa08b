"""Measure the speed of a job's devices, network links, codecs and storage inside the job's own processes.

Like `injected`, this package runs as a guest: it imports only the standard library, torch and `shared` (and esprof's codecs
if the job's interpreter has them), writes only to the recording's folder `raw`, and changes no state of the job. All ranks
take the same measurements in the same order: `plan.py` lists them; `bench.py` has the clock, the budget and the notes.
"""
