"""What is taken out of texts and JSON, what is left alone, and that JSON stays JSON."""

import json
import re
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.redaction import BUILT_IN, BadPattern, Pattern, Redactor, check_pattern

ALL = Redactor(BUILT_IN, kept=frozenset({"role", "id", "type"}), free=frozenset({"input"}))
EMAIL = "ada.b+c@mail.example.org"


def redact(text: str, redactor: Redactor = ALL) -> tuple[str, dict[str, int]]:
    found: Counter[str] = Counter()
    return redactor.redact_text(text, found), dict(found)


def redact_json(value: Any, redactor: Redactor = ALL) -> tuple[Any, dict[str, int]]:
    found: Counter[str] = Counter()
    return json.loads(redactor.redact_json(json.dumps(value).encode(), found)), dict(found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (EMAIL, "email"),
        ("sk-proj-abcdefghijklmnop1234", "secret"),
        ("sk-ant-api03-abcdefghijklmnop1234", "secret"),
        ("claw-abcdefghijklmnopqrstuvwxyz", "secret"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "secret"),
        ("github_pat_11ABCDEFG0123456789abcdef", "secret"),
        ("glpat-abcdefghijklmnopqrst", "secret"),
        ("xoxb-123456789012-abcdef", "secret"),
        ("AKIAIOSFODNN7EXAMPLE", "secret"),
        ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "secret"),
        ("hf_abcdefghijklmnopqrstuvwxyz01234567", "secret"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "secret"),
        ("Bearer abcdefghijklmnopqrstuvwxyz", "secret"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----", "secret"),
        ("4111 1111 1111 1111", "credit_card"),
        ("4111-1111-1111-1111", "credit_card"),
        ("378282246310005", "credit_card"),
        ("DE89 3704 0044 0532 0130 00", "iban"),
        ("GB82WEST12345698765432", "iban"),
        ("+49 151 23456789", "phone"),
        ("+1 (415) 555-2671", "phone"),
        ("(415) 555-2671", "phone"),
        ("415-555-2671", "phone"),
    ],
)
def test_it_finds_each_kind_wherever_it_stands(text: str, name: str) -> None:
    assert redact(text) == (f"[redacted:{name}]", {name: 1})
    assert redact(f"ü: {text}, and\n{text}.") == (f"ü: [redacted:{name}], and\n[redacted:{name}].", {name: 2})


@pytest.mark.parametrize(
    "text",
    [
        "nothing at all",
        "4111 1111 1111 1112",  # Luhn
        "4444 4444 4444 4444",
        "1764590400123",  # a time in milliseconds
        "DE88 3704 0044 0532 0130 00",  # mod 97
        "DE89 3704 0044",
        "ZZ89370400440532013000",
        "2026-12-01 10:30:00.123456",
        "10.0.0.1:8000 v1.22.333",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "5d41402abc4b2a76b9719d911017c592",
        "user@localhost and @decorator",
        "sk-learn is a library",
        "+1 -1 +12",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert redact(text) == (text, {})


def test_what_follows_a_match_is_looked_at_again() -> None:
    text, found = redact("DE89370400440532013000 GB82 WEST 1234 5698 7654 32 OVER AND OUT")
    assert (text, found) == ("[redacted:iban] [redacted:iban] OVER AND OUT", {"iban": 2})


def test_json_is_redacted_inside_its_strings() -> None:
    value, found = redact_json({"messages": [{"role": "user", "content": f"write to {EMAIL}"}], "n": 1, "x": None})
    assert value == {"messages": [{"role": "user", "content": "write to [redacted:email]"}], "n": 1, "x": None}
    assert found == {"email": 1}


def test_structure_stays_as_it_is_except_in_what_the_caller_calls_free() -> None:
    value, _ = redact_json({"id": EMAIL, "role": EMAIL, EMAIL: 1, "input": {"id": EMAIL, EMAIL: {"role": EMAIL}}})
    assert value["id"] == value["role"] == EMAIL
    assert EMAIL in value
    assert value["input"] == {"id": "[redacted:email]", "[redacted:email]": {"role": "[redacted:email]"}}


def test_json_in_a_string_stays_json() -> None:
    arguments = json.dumps({"card": 4111111111111111, "to": [EMAIL], "id": EMAIL})
    value, found = redact_json({"function": {"name": "pay", "arguments": arguments}})
    assert json.loads(value["function"]["arguments"]) == {
        "card": "[redacted:credit_card]",
        "to": ["[redacted:email]"],
        "id": "[redacted:email]",
    }
    assert found == {"credit_card": 1, "email": 2}


def test_an_own_pattern_that_eats_quotes_breaks_no_json() -> None:
    greedy = Redactor([Pattern("all", r"\S+")])
    value, _ = redact_json({"a": json.dumps({"b": "c d"}), "e": '{"half'}, greedy)
    assert json.loads(value["a"]) == {"[redacted:all]": "[redacted:all] [redacted:all]"}
    assert value["e"] == "[redacted:all]"


def test_what_is_escaped_is_found_too() -> None:
    found: Counter[str] = Counter()
    assert ALL.redact_json(rb'{"a": "ada\u0040example.org"}', found) == b'{"a":"[redacted:email]"}'


def test_bytes_without_a_match_are_the_same_bytes() -> None:
    data = b'{ "a" : "b\\u00e9", "n": 1.0 }'
    assert ALL.redact_json(data, Counter()) is data


@pytest.mark.parametrize("twin", [b'"ada@example.org"', rb'"ada\u0040example.org"', b'[{"x": ["ada@example.org"]}]'])
def test_a_member_that_is_there_twice_hides_nothing(twin: bytes) -> None:
    body, found = b'{"a": %b, "a": "x"}' % twin, Counter[str]()
    assert ALL.redact_json(b'{"b": %b, "c": 1}' % body, found) == b'{"b":{"a":"x"},"c":1}'
    assert found

    arguments = json.dumps({"arguments": body.decode()}).encode()
    assert json.loads(ALL.redact_json(arguments, Counter())) == {"arguments": '{"a":"x"}'}


def test_members_that_are_there_twice_and_hold_nothing_stay() -> None:
    data = b'{"a": 1, "a": "x"}'
    assert ALL.redact_json(data, Counter()) is data


def test_what_is_no_json_is_a_text() -> None:
    assert ALL.redact_json(f"oops {EMAIL}".encode(), Counter()) == b"oops [redacted:email]"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("(", "a ( is never closed"),
        ("(?=a)", "no look-around"),
        ("a*", "empty"),
        (r"\b", "empty"),
        ("x" * 501, "500"),
        ("", "empty"),
    ],
)
def test_an_own_pattern_is_checked(expression: str, words: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(words)):
        check_pattern(expression)


def test_a_pattern_that_explodes_elsewhere_takes_no_time_here() -> None:
    check_pattern("(x+x+)+y")
    slow = Redactor([Pattern("boom", "(x+x+)+y")])
    began = time.perf_counter()
    assert redact("x" * 100_000, slow) == ("x" * 100_000, {})
    assert time.perf_counter() - began < 10


@given(st.text(alphabet="a1@.-+ 4ü🦦DE89GB{}[]\"'\\:sk", max_size=200))
def test_nothing_is_found_twice_and_no_json_is_broken(text: str) -> None:
    redacted, found = redact(text)
    assert redact(redacted)[0] == redacted
    assert (redacted == text) == (not found)
    value, _ = redact_json({"a": [text], "b": json.dumps([text])})
    assert isinstance(json.loads(value["b"]), list)
