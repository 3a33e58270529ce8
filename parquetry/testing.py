"""`assert_resumable` tests that an iterator of your own resumes exactly where a state was taken."""

from __future__ import annotations

from .common.apps.testing import assert_resumable

__all__ = ["assert_resumable"]
