"""CPU threads as chains of nodes: operations, calls, gaps, pauses and loaders."""
