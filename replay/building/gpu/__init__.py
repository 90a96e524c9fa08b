"""GPU streams: their work and its launches (`kernels`), waits between streams (`streams`, `pending_events`), and waits of
runtime calls for GPU work (`runtime_waits`)."""
