"""What RE2 says of a pattern that it does not take. Knows nothing of what the pattern is for."""

import re2


def read_fault(error: re2.error) -> str:
    """Return RE2's own words, which come as bytes."""
    words = error.args[0] if error.args else ""
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)
