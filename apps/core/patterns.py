"""What RE2 says of a pattern that it does not take, in words for people. Knows nothing of what the pattern is for."""

import re2

_WORDS = {
    "missing )": "a ( is never closed",
    "unexpected )": "a ) closes nothing",
    "missing ]": "a [ is never closed",
    "no argument for repetition operator": "nothing stands before the sign that repeats",
    "bad repetition operator": "two signs that repeat stand side by side",
    "invalid repetition size": "it repeats too often, or a range of times runs backwards",
    "invalid perl operator": "there is no such group (no look-around either)",
    "invalid named capture group": "a group's name has letters, digits and _, once each, as in (?P<name>…)",
    "invalid escape sequence": "there is no such escape (no back-references either)",
    "invalid character class range": "there is no such set or range of characters (a range runs upwards)",
    "trailing \\": "a \\ stands at its end",
    "pattern too large - compile failed": "it is too large",
}
SHOWN = 60


def read_fault(error: re2.error) -> str:
    """Return what is wrong, and the part of the pattern that RE2 names. Its own words come as bytes."""
    words = error.args[0] if error.args else ""
    said, _, part = (words.decode(errors="replace") if isinstance(words, bytes) else str(words)).partition(": ")
    told = _WORDS.get(said, said)
    return f"{told}, in {part[:SHOWN]}{'…' if len(part) > SHOWN else ''}" if part else told
