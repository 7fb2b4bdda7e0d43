"""Loops over batches, the steps in them, and their losses."""
