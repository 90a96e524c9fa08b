"""What the job's processes and the launcher both need: like `injected`, of the standard library and torch alone."""
