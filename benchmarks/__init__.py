"""Figures for the docs: each module prints one JSON line a figure, {"name", "value", "unit", "context"}."""
