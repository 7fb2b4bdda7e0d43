"""The files of a project: their syntax, scopes and imports."""
