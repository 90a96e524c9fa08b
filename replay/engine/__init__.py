"""When each node of a graph starts and ends (`timeline.replay`, by the longest path): of one graph, or of many scenarios at
once (`batch`); and in which order nodes stand (`topology`) and lanes run them after an edit (`schedule`)."""
