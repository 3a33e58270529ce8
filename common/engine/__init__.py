"""How items are made: fetch encoded columns, gather, decode straight into the batch buffer, transform."""
