"""How a person likes the list of trajectories: which columns, how dense. Kept in cookies: the server draws it."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse

COLUMNS = {
    "agent": "Agent",
    "channel": "Channel",
    "turns": "Turns",
    "tokens": "Tokens",
    "took": "Took",
    "reward": "Reward",
    "tags": "Tags",
    "state": "State",
    "started": "Started",
}
SHOWN_AT_FIRST = ("agent", "turns", "tokens", "took", "reward", "tags", "state", "started")
DENSITIES = {"roomy": "Roomy", "dense": "Dense"}
YEAR_S = 365 * 86400


@dataclass(frozen=True, kw_only=True)
class TableLook:
    """Columns beside the first words, and the density."""

    columns: tuple[str, ...]
    density: str

    @property
    def choices(self) -> list[tuple[str, str, bool]]:
        """Name, words, and whether it is shown, of every column."""
        return [(name, words, name in self.columns) for name, words in COLUMNS.items()]


def read_look(request: HttpRequest) -> TableLook:
    """Return what the cookies say; anything odd in them is passed over."""
    kept = request.COOKIES.get("columns")
    names = SHOWN_AT_FIRST if kept is None else kept.split(".")
    density = request.COOKIES.get("density", "")
    return TableLook(
        columns=tuple(name for name in COLUMNS if name in names),
        density=density if density in DENSITIES else "roomy",
    )


def keep_look(response: HttpResponse, *, columns: list[str], density: str) -> None:
    """Set the cookies; names that are no columns are passed over."""
    kept = ".".join(name for name in COLUMNS if name in columns)
    for name, value in (("columns", kept), ("density", density if density in DENSITIES else "roomy")):
        response.set_cookie(name, value, max_age=YEAR_S, samesite="Lax", httponly=True)
