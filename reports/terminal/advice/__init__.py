"""Advice, for a terminal."""
