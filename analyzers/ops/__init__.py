"""The table of operations: time in the steady-state steps by name, on every rank."""
