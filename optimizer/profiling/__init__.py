"""Where the time of a training step goes, and which transforms could win some of it back."""
