"""How fast: versions of a script timed side by side, and what may be said about their speeds."""
