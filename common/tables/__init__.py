"""Opens tables and data frames of other libraries; see `Pipeline.from_delta` and its siblings."""
