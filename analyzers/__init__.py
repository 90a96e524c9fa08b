"""Findings, breakdowns and comparisons: pure functions over a Run, its Dfg and its Timeline."""
