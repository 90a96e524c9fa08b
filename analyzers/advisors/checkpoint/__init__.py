"""Advice on the interval of checkpoints."""
