"""Which changes pay on this machine: measured one after the other, kept or dropped, and the winner verified."""
