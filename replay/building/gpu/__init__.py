"""GPU streams: their work and its launches (`kernels`), what streams wait for (`streams`, `pending_events`), and what the
runtime's calls wait for (`runtime_waits`)."""
