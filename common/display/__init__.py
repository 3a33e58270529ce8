"""Values as people look at them: short texts, pictures, tables, and batches described or drawn."""
