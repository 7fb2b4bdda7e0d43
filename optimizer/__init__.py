"""The pipeline: read, understand, rewrite, run, compare, measure, report, and the command line."""
