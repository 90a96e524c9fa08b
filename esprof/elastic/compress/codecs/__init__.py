"""How gradients are written for the wire: by elastic jobs' ESTs, and by the ranks of plain data parallelism."""
