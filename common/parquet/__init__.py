"""What a file says: footers, pages, statistics, and how its columns become those of the dataset."""
