"""The workers of a reader."""
