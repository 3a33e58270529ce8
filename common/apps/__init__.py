"""The command line, reports, and tools for whole datasets."""
