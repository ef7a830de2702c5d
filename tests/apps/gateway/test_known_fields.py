"""A field that nobody here would read is refused by name; what OpenAI's clients and engines of ours know is known."""

import ast
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import openai.types as openai_types
import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as completion_params
import openai.types.responses.response_create_params as response_params
import orjson
import pytest
from django.conf import settings

from apps.gateway.chat import shapes as chat_shapes
from apps.gateway.completions import shapes as completion_shapes
from apps.gateway.embeddings import shapes as embedding_shapes
from apps.gateway.errors import ApiError
from apps.gateway.known_fields import IGNORED, REFUSED, SAMPLING, TEMPLATE
from apps.gateway.known_talks import KnownTalks
from apps.gateway.messages.shapes import read_messages_request
from apps.gateway.responses import shapes as response_shapes
from clawplatform.env import ROOT

Json = dict[str, Any]
Read = Callable[[bytes], Any]

SAID: list[Json] = [{"role": "user", "content": "hello"}]
read_chat_request = partial(chat_shapes.read_chat_request, known=KnownTalks(), scope="proj_1")
DOORS: list[tuple[str, Read, Json]] = [
    ("chat", read_chat_request, {"model": "otter", "messages": SAID}),
    ("completions", completion_shapes.read_completion_request, {"model": "otter", "prompt": "hello"}),
    ("embeddings", embedding_shapes.read_embeddings_request, {"model": "otter", "input": "hello"}),
    ("responses", response_shapes.check_request, {"model": "otter", "input": "hello"}),
    ("messages", read_messages_request, {"model": "otter", "messages": SAID, "max_tokens": 5}),
]
every_door = pytest.mark.parametrize(("read", "body"), [door[1:] for door in DOORS], ids=[door[0] for door in DOORS])


def refusal(read: Read, body: Json) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(orjson.dumps(body))
    assert caught.value.status == 400
    return caught.value


@every_door
def test_an_unknown_field_is_refused_by_name(read: Read, body: Json) -> None:
    values: list[Any] = [True, False, 0, "", {}, "x"]
    for value in values:
        error = refusal(read, body | {"brand_new": value})
        assert error.param == "brand_new"
        assert "brand_new" in error.message


@every_door
def test_an_unknown_field_that_is_null_says_nothing(read: Read, body: Json) -> None:
    read(orjson.dumps(body | {"brand_new": None}))


@every_door
def test_a_name_without_end_is_not_repeated_without_end(read: Read, body: Json) -> None:
    assert len(refusal(read, body | {"x" * 100_000: 1}).message) < 1000


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("temprature", "Did you mean `temperature`?"),
        ("max_output_tokens", "Did you mean `max_completion_tokens`?"),
        ("colour", "has it."),
        ("enable_thinking", "`chat_template_kwargs`"),
        ("guided_json", "`structured_outputs`"),
        ("extra_body", "beside the other fields"),
    ],
)
def test_the_refusal_says_what_to_do_instead(name: str, advice: str) -> None:
    error = refusal(read_chat_request, {"model": "otter", "messages": SAID, name: False})
    assert (error.code, error.param) == ("unknown_parameter", name)
    assert advice in error.message


def test_each_dialects_own_limit_is_named() -> None:
    error = refusal(response_shapes.check_request, {"model": "otter", "input": "hello", "max_tokens": 5})
    assert "Did you mean `max_output_tokens`?" in error.message


@pytest.mark.parametrize("name", sorted(REFUSED))
@every_door
def test_what_would_change_the_meaning_is_refused_at_every_door(read: Read, body: Json, name: str) -> None:
    assert refusal(read, body | {name: {"mode": "block"}}).param == name


@pytest.mark.parametrize(
    ("params", "known"),
    [
        (chat_params.CompletionCreateParamsStreaming, chat_shapes.KNOWN),
        (completion_params.CompletionCreateParamsStreaming, completion_shapes.KNOWN),
        (openai_types.EmbeddingCreateParams, embedding_shapes.KNOWN),
        (response_params.ResponseCreateParamsStreaming, response_shapes.KNOWN),
    ],
    ids=["chat", "completions", "embeddings", "responses"],
)
def test_every_field_of_openais_package_is_known(params: type, known: frozenset[str]) -> None:
    assert get_type_hints(params).keys() - known == set()


@pytest.mark.parametrize(
    ("place", "classes", "known"),
    [
        ("chat_completion", {"ChatCompletionRequest"}, chat_shapes.KNOWN),
        ("completion", {"CompletionRequest"}, completion_shapes.KNOWN),
    ],
)
def test_every_field_that_engines_read_is_known(place: str, classes: set[str], known: frozenset[str]) -> None:
    find = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([settings.CLAW.ml_python, "-c", find], check=True, capture_output=True, text=True)
    package = found.stdout.strip()
    source = Path(package) / "entrypoints" / "openai" / place / "protocol.py"
    assert read_fields(source, classes) - known == set()


def read_fields(source: Path, classes: set[str]) -> set[str]:
    """Return the public fields of these pydantic models, read from their source: importing vLLM takes seconds."""
    found: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            targets = [inner.target for inner in node.body if isinstance(inner, ast.AnnAssign)]
            found |= {target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"}
    assert found
    return found


def test_no_field_stands_in_two_tables() -> None:
    for name, known in (("chat", chat_shapes), ("completions", completion_shapes), ("responses", response_shapes)):
        own = known.READ
        tables = [own, SAMPLING, TEMPLATE, IGNORED, frozenset(known.REFUSED)]
        for place, table in enumerate(tables):
            for other in tables[place + 1 :]:
                assert not table & other, name


def test_the_page_about_requests_names_every_field() -> None:
    page = (ROOT / "docs" / "requests.md").read_text()
    openais = get_type_hints(chat_params.CompletionCreateParamsStreaming).keys()
    told = ((SAMPLING | TEMPLATE) - openais) | IGNORED | REFUSED.keys()
    assert [name for name in sorted(told) if f"`{name}`" not in page] == []
