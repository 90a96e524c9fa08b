"""Advice on DataLoaders: how many workers a rank needs, and how far ahead each of them works."""
