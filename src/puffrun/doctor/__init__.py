"""What would go wrong here, before it does."""
