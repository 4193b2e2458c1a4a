"""Files to samples to packed micro-batches: deterministic, balanced, and the same on every layout."""
