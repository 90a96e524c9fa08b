"""One module a verb; `esprof.cli.VERBS` lists them."""
