"""Code that both the job's processes and the launcher use. Imports only the standard library and torch, like `injected`."""
