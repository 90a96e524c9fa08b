"""The notes of a process, the thread that writes them, and the circuit breaker that ends recording."""
