"""What a training program imports: agreement, preflight, checkpoint, progress."""
