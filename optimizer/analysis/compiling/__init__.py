"""Which networks ``torch.compile`` pays for, and where they are compiled."""
