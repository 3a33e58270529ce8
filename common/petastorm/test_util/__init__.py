"""Helpers for the tests of code that uses readers."""
