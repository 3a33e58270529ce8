"""The compiled core: copies of many rows by number, without the interpreter's lock."""
