"""What-if questions. `pricing` answers them, `grammar` parses them, `terms/` has a file for each kind of term, `graph/` and
`gradients/` edit the graph, `communication/` models collectives, `error/` estimates the error of an answer."""
