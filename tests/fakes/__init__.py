"""Fakes that tests of several areas use."""
