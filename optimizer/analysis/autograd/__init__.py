"""Where gradients are recorded, and what needs them."""
