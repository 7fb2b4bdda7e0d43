"""Optimizers and other updates of parameters."""
