"""Which devices a script runs on, and how its tensors and networks get there."""
