"""Tables of timed operations (docs/how-to/tables.md), as columns and as events."""
