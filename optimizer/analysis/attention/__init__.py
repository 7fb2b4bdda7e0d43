"""Attention that is written out operation by operation."""
