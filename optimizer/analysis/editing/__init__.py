"""What edits need: names, imports, the spelling of a file."""
