"""Windows of `torch.profiler`: when they open, what they hold, and whose profiler comes first."""
