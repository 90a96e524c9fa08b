"""ESP3xx: communication."""
