"""Windows of `torch.profiler`: their schedule, their content, and the precedence of the job's own profiler."""
