"""Where a loop waits for the device to have a number."""
