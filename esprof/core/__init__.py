"""Shared by all layers: scalars, errors, atomic files, text, plans, statistics."""
