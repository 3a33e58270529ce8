"""Petastorm's names, from parquetry: after this import, ``petastorm`` is ``parquetry.petastorm``."""

import sys

from parquetry.petastorm import install

del sys.modules[__name__]  # install() puts parquetry's module in its place
install()
