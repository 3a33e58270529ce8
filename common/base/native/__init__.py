"""The compiled core: copies many rows by number without holding the interpreter lock."""
