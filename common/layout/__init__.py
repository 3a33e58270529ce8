"""Describes what is on storage: files, footers, partitions, and the table of row groups."""
