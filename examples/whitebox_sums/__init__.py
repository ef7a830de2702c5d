"""A white-box agent: it works in tokens, judges itself and submits what it did. Needs `tokenizers` and no more."""
