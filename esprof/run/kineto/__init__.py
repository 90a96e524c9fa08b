"""Reads the traces that PyTorch's profiler (Kineto) writes."""
