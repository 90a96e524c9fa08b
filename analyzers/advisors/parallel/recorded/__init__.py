"""Layers of a recorded model."""
