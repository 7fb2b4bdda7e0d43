"""Running a script and its rewrite, judging whether they train alike, and keeping only what does."""
