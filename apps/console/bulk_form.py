"""What the bar under the list of trajectories was told, and what is wrong with that. Knows not what an action does."""

from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from apps.core.errors import InvalidInput, ServiceError

GIVEN = {
    "reward": "value",
    "tag": "tag",
    "untag": "tag",
    "channel": "channel",
    "dataset": "dataset",
    "queue": "queue",
    "take-back": "grader",
}


@dataclass(frozen=True, kw_only=True)
class BulkForm:
    """The chosen rows, what is to be done with them, and the fields of every action as they were filled in."""

    ids: tuple[str, ...] = ()
    action: str = ""
    value: str = ""
    tag: str = ""
    channel: str = ""
    dataset: str = ""
    queue: str = ""
    grader: str = ""
    fault: str = ""
    field: str = ""  # the name of the field that is at fault, "" for none of them

    @classmethod
    def of_data(cls, data: QueryDict, *, refused: ServiceError | None = None) -> "BulkForm":
        """Read the form, with the error that it met with."""
        names = ("action", "value", "tag", "channel", "dataset", "queue", "grader")
        given = {name: data.get(name, "").strip() for name in names}
        fault, field = (refused.message, refused.field) if refused else ("", "")
        return cls(ids=tuple(data.getlist("id")), fault=fault, field=field if field in given else "", **given)

    def read_settings(self) -> dict[str, Any]:
        """Return what the action is told; fields of the other actions stand empty in the form. Raises InvalidInput."""
        name = GIVEN.get(self.action)
        if name is None:
            return {}
        if name != "value":
            return {name: getattr(self, name)}
        try:
            return {"value": float(self.value.replace("−", "-").replace(",", "."))}
        except ValueError:
            raise InvalidInput("a reward is a number from −1 to 1", field="value") from None
