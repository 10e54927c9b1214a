"""What runs inside a rank: the recorder of uncaught exceptions, and the in-rank library."""
