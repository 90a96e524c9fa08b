"""Cost of communication: on the link (`links`), as `esprof probe` measured it (`probed`), and for concurrent work
(`slowing`)."""
