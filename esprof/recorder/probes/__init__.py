"""Measures, within the job's own processes, what its devices, links, codecs and storage can do.

Like what is `injected`, it is a guest there: it imports the standard library, torch and `shared` and nothing else (but for
esprof's codecs, where the job's interpreter has them), writes to the recording's `raw` folder alone, and changes nothing of
the job's. All ranks go through the same measurements in the same order: `plan.py` has them, `bench.py` the clock, the
budget and the notes.
"""
