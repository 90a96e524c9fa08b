"""One module a verb; `esprof.verbs.VERBS` lists them."""
