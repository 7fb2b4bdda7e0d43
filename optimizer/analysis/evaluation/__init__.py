"""Code that runs networks for their results only."""
