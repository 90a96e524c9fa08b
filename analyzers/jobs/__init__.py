"""Job logs of GPU clusters: what jobs waited for, where GPU time went, and how many GPUs to ask for."""
