"""Tables and data frames of other libraries, as files with columns; see `Pipeline.from_delta` and its siblings."""
