"""What each turn of a trajectory brought in the end. Pure: standard library only.

A turn's return is what it and all later turns were rewarded with, later rewards discounted. A missing reward is not
zero: it adds nothing, and a turn behind which nothing is known has no return at all.
"""

from collections.abc import Sequence


def add_final(rewards: Sequence[float | None], final: float | None) -> list[float | None]:
    """Return the turns' rewards with the trajectory's own, `final`, at the last of them."""
    if not rewards or final is None:
        return list(rewards)
    return [*rewards[:-1], final + (rewards[-1] or 0.0)]


def discount_returns(rewards: Sequence[float | None], *, discount: float) -> list[float | None]:
    """Return for each turn G_k = r_k + discount G_{k+1}, None where neither is known."""
    returns: list[float | None] = []
    later: float | None = None
    for reward in reversed(rewards):
        known = [value for value in (reward, None if later is None else discount * later) if value is not None]
        later = sum(known) if known else None
        returns.append(later)
    return returns[::-1]


def undo_discount(returns: Sequence[float], *, discount: float) -> list[float]:
    """Return the rewards of which these are the returns, r_k = G_k - discount G_k+1: what came before the next turn.

    Turns that are left out in between pass what they brought on to the turn before them.
    """
    return [value - discount * later for value, later in zip(returns, [*returns[1:], 0.0], strict=False)]
