"""Makes items: fetches encoded columns, gathers rows, decodes straight into the batch buffer, and transforms."""
