"""Networks, their layers, and how these are laid out in memory."""
