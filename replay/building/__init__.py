"""From a Run to its graph (`build.build`): the events of each rank are read (`rank_events`), its collectives matched with
those of the others (`collectives`), its part of the graph is built (`rank_part`, from `threads`, `gpu` and `collectives`),
and the parts are tied together (`assemble`). docs/explanation/replay.md has the rules."""
