"""Columns in memory: gathers, decodes and hands them over."""
