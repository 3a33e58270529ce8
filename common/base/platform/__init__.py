"""Every call that not each Unix has, with a portable twin; the rest of the package calls these modules instead.

On a laptop with macOS the twins do the work: threads of `Pipeline`, ``ParquetIterable`` and ``ParquetMap`` need nothing
else. What has no twin, such as packets between processes, raises an error or reports that it is missing.
"""
