"""What-ifs as changes of a graph: edits, overlays, and the selections that they act on."""
