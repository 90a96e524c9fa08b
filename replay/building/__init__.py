"""From a Run to its graph (`build.build`): read the events of each rank (`rank_events`), match collectives across ranks
(`collectives`), build the graph of each rank (`rank_graph`, from `threads`, `gpu` and `collectives`), and connect the ranks
(`assemble`). docs/explanation/replay.md has the rules."""
