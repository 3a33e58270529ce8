"""What this process needs as one among others: locks, forks, its rank."""
