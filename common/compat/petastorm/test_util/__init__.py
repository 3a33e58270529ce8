"""Helpers for testing code that uses readers."""
