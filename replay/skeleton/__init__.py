"""Smaller graphs with the same longest paths: a graph is contracted to some of its nodes (`contract`)."""
