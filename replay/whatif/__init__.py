"""What-if questions. `pricing` answers them, `grammar` parses them, and `terms/` has a file for each kind of term.

The other folders hold what terms use: edits of any graph (`graph/`), what the host does (`host/`), gradients, DataLoaders
(`loading/`), pipelines, batches (`samples/`), products of matrices, models of communication and of peak memory, and errors
of answers (`error/`).
"""
