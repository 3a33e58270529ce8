"""Tools over whole datasets: `migrate`, `copy`, `generate_metadata`; ``python -m parquetry.common.tools`` runs them."""
