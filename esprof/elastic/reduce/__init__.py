"""Sums of gradients whose bits do not depend on where the ESTs run."""
