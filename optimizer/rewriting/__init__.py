"""From a transform's edits to new source text: what changed, applied, formatted and attributed."""
