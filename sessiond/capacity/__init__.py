"""How many users a server bears: what a ramp of load showed, the knee in it, fleets. Pure."""
