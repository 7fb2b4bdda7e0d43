"""A rewrite: a script through all transforms until nothing changes, what may be changed, and how the result is told."""
