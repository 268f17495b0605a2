"""Tests of engine.memory."""
