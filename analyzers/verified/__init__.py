"""Comparison of predictions with measurements after a change."""
