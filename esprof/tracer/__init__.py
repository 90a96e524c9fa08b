"""What runs inside a training process, and the launcher around it. Torch is imported here and in `esprof.elastic` only."""
