"""Capacity planning: results of a load ramp, its knee, fleet sizes. Pure."""
