"""What runs inside the torchrun agent process, and in the ranks that are forked from it."""
