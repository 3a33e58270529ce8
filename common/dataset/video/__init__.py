"""Reads frames of MP4 files: what their index says, and how PyAV decodes them."""
