"""Datasets, the loaders that read them, and their batches."""
