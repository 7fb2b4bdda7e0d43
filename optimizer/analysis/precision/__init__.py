"""Which numbers a script needs in float32, and which may be halves."""
