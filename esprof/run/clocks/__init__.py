"""How far the clocks of ranks and hosts are apart."""
