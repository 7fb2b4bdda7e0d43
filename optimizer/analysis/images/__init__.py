"""Images on their way from a dataset to the device."""
