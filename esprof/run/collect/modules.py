"""The table of modules that a rank called."""

from collections.abc import Sequence

from esprof.run.collect.rolled_rows import RankRows
from esprof.run.schema import MODULES, Table, table


def modules_of(rows: RankRows) -> Table:
    """Return the `modules` table of one rank."""
    found = rows.modules.values()
    columns = {name: [getattr(one, name) for one in found] for name in MODULES.names}
    return table(columns | {name: list(map(_lines, columns[name])) for name in ("inputs", "outputs")}, MODULES)


def _lines(names: Sequence[str] | None) -> str | None:
    return None if names is None else "\n".join(names)
