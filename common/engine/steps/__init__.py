"""The steps that work on columns, with a module for each kind."""
