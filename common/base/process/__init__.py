"""How a process works beside others: its rank, file locks, forks, and the end of other processes."""
