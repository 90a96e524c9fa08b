"""What transfers take: of the link (`links`), as `esprof probe` measured it (`probed`), and from the work beside them
(`slowing`)."""
