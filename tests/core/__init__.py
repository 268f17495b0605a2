"""Tests of the loop and what it stands on."""
