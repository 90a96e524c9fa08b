"""Sampled Python stacks: frames, source locations, functions and garbage collections."""
