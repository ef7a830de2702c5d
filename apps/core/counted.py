"""How a number of things is said, where no template says it."""


def count_of(n: int, one: str, many: str = "") -> str:
    """Return a number and what is counted: 1 item, 1,234 items; `many` where an s does not make the plural."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"
