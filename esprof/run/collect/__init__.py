"""Turns what the job's processes left in `raw` into a Run."""
