"""How far a what-if may be off."""
