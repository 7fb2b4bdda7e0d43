"""What tensors are: their type, shape and memory."""
