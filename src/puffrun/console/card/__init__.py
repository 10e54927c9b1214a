"""The card that ends a run, part by part. Pure: from an `Outcome` to lines."""
