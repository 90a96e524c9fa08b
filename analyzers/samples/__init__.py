"""Sampled Python stacks: frames, places, functions and garbage collections."""
