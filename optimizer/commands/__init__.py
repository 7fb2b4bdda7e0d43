"""The subcommands of ``torchopt``: each module declares one's flags and carries it out."""
