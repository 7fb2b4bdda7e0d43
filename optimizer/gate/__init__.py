"""The speedup gate: scripts whose rewrite, or whose next version, must train the same and be fast enough."""
