"""From a corpus to batches: text, tokens, packed sequences."""
