"""Checks that find a script which breaks the promise of equal bits, and the proof that two trainings are equal."""
