"""Replays a graph: when each node starts and ends."""
