"""What is on storage: files, footers, partitions, and one table of row groups."""
