"""One module for each library. Each has the same two names.

``SETTINGS`` says for each variant what it was given. ``batches(case)`` gives the number of rows of one batch after the
other, each batch made and looked at (see `benchmarks.touch`). Modules import their library at the top: a peer that is
not installed is an ``ImportError``, and an empty cell. Optional: ``prepare(folder, target)`` writes a format of its own
before anything is measured; ``steps(case)`` and ``resume_steps(case)`` serve the workloads that time single steps.
"""
