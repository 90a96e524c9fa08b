"""Codecs that encode gradients for communication, for ESTs of elastic jobs and ranks of plain data parallelism."""
