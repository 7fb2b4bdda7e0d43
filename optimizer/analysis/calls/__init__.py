"""Which calls reach which functions, and with what."""
