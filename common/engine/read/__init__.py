"""From storage to encoded columns, by way of the cache."""
