"""How to split a model over devices: from the times of its layers (`profile`, `published`), by an exact search (`partition`)
whose best plans are replayed (`advise`)."""
