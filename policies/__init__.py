"""Pure policies: frozen views in, plans out. Standard library only."""
