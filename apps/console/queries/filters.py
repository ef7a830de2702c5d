"""The list's search box and the selects beside it: one search, which both of them tell. Reads no tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from django.http import QueryDict

from apps.accounts.models import Agent
from apps.core.errors import InvalidInput
from apps.core.texts import is_storable
from apps.trajectories.models import Channel, TrajectoryState
from apps.trajectories.search.fields import ANY, NONE
from apps.trajectories.search.language import Filter, Query, SearchError, Term, parse_query
from apps.trajectories.search.services import name_terms

REWARDED = {"yes": "rewarded", "no": "not rewarded", "good": "above 0", "bad": "below 0"}
AS_SEARCHED = "*"  # what a select shows of a search that says more than it can
LABELS = {"agent": "Agent", "channel": "Channel", "state": "State", "rewarded": "Reward"}  # of the selects
_CHOICES: Mapping[str, list[str]] = {
    "channel": Channel.values,
    "state": TrajectoryState.values,
    "rewarded": list(REWARDED),
}


def _reward(operator: str, value: str, *, is_negated: bool = False) -> Filter:
    return Filter(field="reward", operator=operator, values=(value,), is_negated=is_negated)


def _has_reward(*, is_negated: bool) -> Filter:
    return Filter(field="has", operator=":", values=("reward",), is_negated=is_negated)


# What a search says for a choice; the first is what the choice writes.
_REWARD_TERMS: Mapping[str, tuple[Filter, ...]] = {
    "yes": (_reward(":", ANY), _has_reward(is_negated=False), _reward(":", NONE, is_negated=True)),
    "no": (_reward(":", NONE), _has_reward(is_negated=True), _reward(":", ANY, is_negated=True)),
    "good": (_reward(">", "0"),),
    "bad": (_reward("<", "0"),),
}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What the address asks for: the text of the box, and by its name what each select shows, "" meaning all.

    `was` is the search of the page that the form was sent from: by it a select that was changed there is told from one
    that shows what the box said, and replaces that. None in an address that no form made: all of it must hold then.
    """

    q: str = ""
    selects: Mapping[str, str] = field(default_factory=dict)
    was: str | None = None
    before: str = ""

    @property
    def is_narrowed(self) -> bool:
        return bool(self.q.strip() or any(self.selects.values()))

    def read_query(self) -> Query:
        """Return all of it as one search. Raises SearchError."""
        query = parse_query(self.q)
        if self.was is None:
            return Query(terms=(*query.terms, *(term for pair in self.selects.items() for term in _say(*pair))))
        shown = _read_selects(_read_known(self.was))
        for name, value in self.selects.items():
            if value not in {shown[name], AS_SEARCHED}:
                kept = [term for term in query.terms if not _is_of(name, term)]
                query = Query(terms=(*kept, *_say(name, value)))
        return query

    def showing(self, query: Query) -> "Filters":
        """Return the same with box and selects as they tell this search; a text that says it stands as it was typed."""
        q = self.q.strip()
        return replace(
            self, q=q if parse_query(q) == query else str(query), selects=_read_selects(query), was=str(query)
        )


@dataclass(frozen=True, kw_only=True)
class Select:
    """One select as the page shows it: `choices` are values and words, beside "all"."""

    name: str
    label: str
    value: str
    choices: list[tuple[str, str]]


def list_selects(filters: Filters, *, agents: Sequence[Agent]) -> list[Select]:
    """Return the selects with what they show; what none of its choices is stands among them."""
    choices = {
        "agent": [(agent.slug, agent.name) for agent in agents],
        "channel": [(value, words.lower()) for value, words in Channel.choices],
        "state": [(value, words.lower()) for value, words in TrajectoryState.choices],
        "rewarded": list(REWARDED.items()),
    }
    for name, value in filters.selects.items():
        if value and value not in dict(choices[name]):
            choices[name].append((value, "as searched" if value == AS_SEARCHED else value))
    return [
        Select(name=name, label=label, value=filters.selects[name], choices=choices[name])
        for name, label in LABELS.items()
    ]


def read_filters(given: QueryDict) -> Filters:
    """Read the filters; raise InvalidInput for a value that no filter has."""
    selects = {name: given.get(name, "").strip() for name in LABELS}
    if not is_storable(selects["agent"]):
        raise InvalidInput("agent is not a filter with these characters", field="agent")
    for name, values in _CHOICES.items():
        if selects[name] not in {"", AS_SEARCHED, *values}:
            words = f"{name}={selects[name]} is not a filter; use one of {', '.join(values)}"
            raise InvalidInput(words, field=name)
    return Filters(q=given.get("q", ""), selects=selects, was=given.get("was"), before=given.get("before", "").strip())


def _read_known(text: str) -> Query:
    try:
        return parse_query(text)
    except SearchError:
        return Query()


def _read_selects(query: Query) -> dict[str, str]:
    filters = [term for term in query.terms if isinstance(term, Filter)]
    return {name: _read_select(name, [term for term in filters if _is_of(name, term)]) for name in LABELS}


def _read_select(name: str, terms: list[Filter]) -> str:
    if not terms:
        return ""
    choices = _REWARD_TERMS if name == "rewarded" else terms[0].values
    said = [value for value in choices if terms[0] in _list_terms(name, value)]
    return said[0] if len(terms) == 1 and said else AS_SEARCHED


def _is_of(name: str, term: Term) -> bool:
    """Say whether a term is about what the select is about."""
    if not isinstance(term, Filter):
        return False
    match name:
        case "state":
            return term.field == "is" and not {*term.values}.isdisjoint(TrajectoryState.values)
        case "rewarded":
            return term.field == "reward" or (term.field == "has" and "reward" in term.values)
        case _:
            return term.field == name


def _list_terms(name: str, value: str) -> tuple[Filter, ...]:
    match name:
        case "agent":
            return tuple(name_terms(agent=value))
        case "channel":
            return tuple(name_terms(channel=value))
        case "state":
            return tuple(name_terms(state=value))
        case _:
            return _REWARD_TERMS[value]


def _say(name: str, value: str) -> tuple[Filter, ...]:
    return _list_terms(name, value)[:1] if value not in {"", AS_SEARCHED} else ()
