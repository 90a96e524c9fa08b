"""Tracks: a run, its replay and what-if timelines as processes with threads of slices, for other tools to show."""
