"""What every room may use: errors, URLs, threads, processes, counters, memory, the compiled core."""
