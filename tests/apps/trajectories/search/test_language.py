"""The search language: what is written is read again, and what is wrong is said where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.trajectories.search.fields import ANY, BREAKS, FIELDS, HAS, IS, LABELS, NONE
from apps.trajectories.search.language import Filter, Query, SearchError, Term, Words, parse_query

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
COUNTS = st.integers(0, 10**6).map(str)
VALUES: dict[str, st.SearchStrategy[str]] = {
    "reward": st.one_of(st.floats(-1, 1).map(repr), st.sampled_from(["none", "any"])),
    "turns": COUNTS,
    "tokens": COUNTS,
    "version": COUNTS,
    "has": st.sampled_from(HAS),
    "is": st.sampled_from(IS),
    "label": st.sampled_from(LABELS),
    "break": st.sampled_from([*BREAKS, ANY, NONE]),
    "channel": st.sampled_from(["train", "val"]),
    "from": st.one_of(st.dates().map(str), st.sampled_from(["36h", "7d"])),
    "to": st.datetimes().map(str),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    field = draw(st.sampled_from(list(FIELDS.values())))
    operator = draw(st.sampled_from([":", "<", "<=", ">", ">="])) if field.is_ordered else ":"
    value = VALUES.get(field.name, TEXTS)
    if operator != ":":
        value = value.filter(lambda text: text not in field.words)
    values = draw(st.lists(value, min_size=1, max_size=3 if operator == ":" else 1))
    return Filter(field=field.name, operator=operator, values=tuple(values), is_negated=draw(st.booleans()))


WORDS = st.builds(Words, text=TEXTS, is_negated=st.booleans())
QUERIES = st.lists(st.one_of(filters(), WORDS), max_size=5).map(lambda terms: Query(terms=tuple(terms)))


@given(QUERIES)
def test_what_is_printed_is_read_again(query: Query) -> None:
    assert parse_query(str(query)) == query


@given(st.text(max_size=60))
def test_any_text_is_a_search_or_is_refused_with_a_place_in_it(text: str) -> None:
    refused: SearchError | None = None
    try:
        parse_query(text)
    except SearchError as error:
        refused = error
    assert refused is None or (0 <= refused.position <= len(text) and refused.pointer.endswith("^"))


def test_it_reads_what_people_write() -> None:
    query = parse_query('agent:shop,desk reward<0.3 -has:error  Turns>=5 "late refund" parcel -spam')
    expected: tuple[Term, ...] = (
        Filter(field="agent", operator=":", values=("shop", "desk")),
        Filter(field="reward", operator="<", values=("0.3",)),
        Filter(field="has", operator=":", values=("error",), is_negated=True),
        Filter(field="turns", operator=">=", values=("5",)),
        Words(text="late refund"),
        Words(text="parcel"),
        Words(text="spam", is_negated=True),
    )
    assert query.terms == expected
    assert parse_query("") == Query()


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("agent:shop agnt:shop", 11, "there is no field 'agnt': do you mean agent, as in agent:shop?"),
        ("state:open", 0, "there is no field 'state': do you mean is, as in is:open?"),
        ("colour:red", 0, "there is no field 'colour'; there are agent, reward,"),
        ("reward<much", 7, "reward wants a number, none or any, not 'much'"),
        ("reward<none", 7, "reward wants a number"),
        ("reward:nan", 7, "reward wants a number"),
        ("turns>-1", 6, "turns wants a whole number, not '-1'"),
        ("turns:" + "9" * 30, 6, f"turns wants a whole number up to {2**53}"),
        ("channel<train", 7, "channel has no order: write channel:"),
        ("channel:test", 8, "channel wants one of train, val, not 'test'"),
        ("has:", 4, "has: wants one of error,"),
        ("reward<0.1,0.2", 10, "< takes one value"),
        ("from:tomorrow", 5, "from wants a day (2026-11-01)"),
        ("to:9999-12-31", 3, "to wants a day"),
        ('x "never closed', 2, "this quote is never closed"),
        ('x "  "', 2, "nothing stands between these quotes"),
        ('say"so"', 3, "a space must stand between two terms"),
        ("a - b", 3, "a word must follow the minus"),
        ("a\x00b", 1, "cannot be stored"),
        ("a " * 40, 60, "a search may have 30 terms"),
    ],
)
def test_it_says_where_and_what_is_wrong(text: str, position: int, words: str) -> None:
    with pytest.raises(SearchError) as caught:
        parse_query(text)
    assert caught.value.position == position
    assert words in caught.value.message
    assert caught.value.pointer.splitlines()[1] == " " * position + "^"


def test_a_search_has_an_end() -> None:
    with pytest.raises(SearchError, match="character 4001: a search may have 4000 characters"):
        parse_query("x" * 4001)


def test_a_filter_can_be_put_in_the_place_of_another() -> None:
    query = parse_query("from:7d refund to:1d")
    narrowed = query.replacing("from", "to", by=(Filter(field="from", operator=":", values=("2d",)),))
    assert str(narrowed) == "refund from:2d"
