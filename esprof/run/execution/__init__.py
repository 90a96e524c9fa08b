"""Execution traces: the operations of a process with their tensors and dependencies, mostly without times."""
