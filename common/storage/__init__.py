"""Where bytes are: file systems, listings, file versions, requests, and files that are kept."""
