"""Chain keys of full blocks."""
