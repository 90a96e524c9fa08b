"""The events of calls of modules."""

MODULE_PREFIX = "nn.Module: "
"""Begins the names of calls of modules: of torch.profiler with stacks, and of the recorder."""
