"""How a person likes the list of trajectories: which columns, in which widths, how dense. Kept with the person."""

import json
from dataclasses import dataclass, field

from apps.accounts.models import User
from apps.core.errors import InvalidInput
from apps.trajectories.search.models import ListLook

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
NARROWEST, WIDEST = 40, 800  # pixels


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column beside the first words; `width` in pixels, None: as its contents are."""

    name: str
    words: str
    is_shown: bool
    width: int | None


@dataclass(frozen=True, kw_only=True)
class TableLook:
    """Columns beside the first words, and the density."""

    columns: tuple[str, ...] = SHOWN_AT_FIRST
    density: str = "roomy"
    widths: dict[str, int] = field(default_factory=dict)

    @property
    def choices(self) -> list[Column]:
        """Every column, in order."""
        return [
            Column(name=name, words=words, is_shown=name in self.columns, width=self.widths.get(name))
            for name, words in COLUMNS.items()
        ]


def read_look(user: User) -> TableLook:
    """Return how the person likes it; a column or density that there is no more is passed over."""
    kept = ListLook.objects.filter(pk=user.pk).first()
    if kept is None:
        return TableLook()
    return TableLook(
        columns=tuple(name for name in COLUMNS if name in kept.columns),
        density=kept.density if kept.density in DENSITIES else "roomy",
        widths={name: width for name, width in kept.widths.items() if name in COLUMNS},
    )


def keep_look(user: User, *, columns: list[str], density: str) -> None:
    """Keep columns and density; names that are none are passed over."""
    kept = [name for name in COLUMNS if name in columns]
    density = density if density in DENSITIES else "roomy"
    ListLook.objects.update_or_create(user=user, defaults={"columns": kept, "density": density})


def keep_widths(user: User, *, widths: str) -> None:
    """Keep widths, a JSON object of pixels by column. Raises InvalidInput when it is none."""
    try:
        given = json.loads(widths)
        kept = {name: min(max(int(given[name]), NARROWEST), WIDEST) for name in COLUMNS if name in given}
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput("widths is a JSON object: pixels by column", field="widths") from error
    ListLook.objects.update_or_create(
        user=user, defaults={"widths": kept}, create_defaults={"widths": kept, "columns": list(SHOWN_AT_FIRST)}
    )
