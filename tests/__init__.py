"""Tests of sessiond."""
