"""Judges whether two observed training runs are the same: findings, tolerances, and a verdict per tier."""
