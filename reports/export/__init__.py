"""Formats in which `esprof export` writes timelines."""
