"""What clients touch: protocol (no I/O), socket, rest."""
