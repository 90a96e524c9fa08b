"""What-if questions. `pricing` answers them and says how; `grammar` reads them, `terms/` holds a file for each kind of term,
`graph/` and `gradients/` what they change in the graph, `transfers/` what transfers take, `error/` how far an answer may be
off."""
