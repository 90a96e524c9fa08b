"""When each node of a graph starts and ends (`timeline.replay`, by the longest path); in which order nodes stand
(`topology`), and lanes run them after an edit (`schedule`)."""
