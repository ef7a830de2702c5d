"""Messages as an engine's chat template takes them. What the client sent is kept as it was sent.

Templates differ in what they refuse: many know one system message, at the start; some insist that user and assistant
take turns; a few know no system at all. An engine's template is not here to be read, so it is asked: a refusal that
speaks of roles has the same messages sent in the next stricter form, and what it took then is remembered.
"""

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import orjson
import structlog

from apps.gateway.dialect import Json

log = structlog.get_logger(__name__)

UNPARSED = "unparsed_arguments"  # holds what the model wrote where it should have written an object
_GAP = "\n\n"
_SYSTEM = ("system", "developer")
_PLAIN = frozenset({"role", "content", "name"})
_ABOUT_ROLES = re.compile(rb"\brole|system|alternat", re.IGNORECASE)
_ABOUT_FIELDS = b"validation error"  # it names the types of all messages; no template was asked
_MOST_TEMPLATES = 1000


class PromptForm(IntEnum):
    """How strict the template is; each form has what those before it have."""

    OPENING_JOINED = 0  # as it was sent, but for system messages at the start, which are one
    SYSTEM_FIRST = 1  # later system messages are reminders that the user passes on, where they stand
    TAKING_TURNS = 2  # neighbours of one role are one message
    NO_SYSTEM = 3  # the user says first what the system would have said


class KnownForms:
    """Which form each template took, as far as this process has seen.

    A template is named with the project that asks: what one team's calls teach changes no other team's prompts.
    """

    def __init__(self) -> None:
        self._forms: dict[str, PromptForm] = {}

    def find(self, template: str) -> PromptForm:
        return self._forms.get(template, PromptForm.OPENING_JOINED)

    def note(self, template: str, form: PromptForm) -> None:
        """The template took this form and refused those before it."""
        if len(self._forms) >= _MOST_TEMPLATES:
            self._forms.clear()
        self._forms[template] = form


class Prompt:
    """The messages of one call: `messages` is what its engine is asked next, `mended` what was changed for it."""

    def __init__(self, sent: list[Json], *, known: KnownForms, template: str) -> None:
        self._sent = sent
        self._known = known
        self._template = template
        self.form = known.find(template)
        self.messages, self.mended = make_messages(sent, self.form)

    def make_stricter(self, status: int, refusal: bytes) -> bool:
        """Take the next form that changes the messages if the engine's template may want it; says whether one did."""
        if status != 400 or _ABOUT_FIELDS in refusal or _ABOUT_ROLES.search(refusal) is None:
            return False
        for form in list(PromptForm)[self.form + 1 :]:
            messages, mended = make_messages(self._sent, form)
            if messages != self.messages:
                self.form, self.messages, self.mended = form, messages, mended
                return True
        return False

    def note_taken(self) -> None:
        """The engine took this form: the calls that follow are asked in it at once."""
        if self.form > self._known.find(self._template):
            log.info("prompt.form_learned", template=self._template, form=self.form.name)
            self._known.note(self._template, self.form)


def make_messages(messages: list[Json], form: PromptForm) -> tuple[list[Json], Json]:
    """Return the messages in this form, and what was changed in them: place → how."""
    spelled, mended = _mend_arguments(messages)
    made = spelled
    for step in _STEPS[: form + 1]:
        made = step(made)
    if made is not spelled and made != spelled:
        mended["messages"] = form.name.lower()
    return made, mended


def _mend_arguments(messages: list[Json]) -> tuple[list[Json], Json]:
    """Return the messages with every call's arguments as the JSON object that engines parse.

    A call that the token limit cut off stays in its session's history; an engine that refuses it would refuse the
    session for good.
    """
    mended: Json = {}
    made = messages
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list):
            continue
        broken = {at: text for at, call in enumerate(calls) if (text := _find_broken(call)) is not None}
        if not broken:
            continue
        if made is messages:
            made = list(messages)
        made[place] = {**message, "tool_calls": [_wrap(call, broken.get(at)) for at, call in enumerate(calls)]}
        mended |= {f"messages[{place}].tool_calls[{at}].function.arguments": UNPARSED for at in broken}
    return made, mended


def _find_broken(call: Any) -> str | None:
    """Return the arguments if they are a text that is no JSON object."""
    function = call.get("function") if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(text, str) or not text:
        return None
    try:
        return None if isinstance(orjson.loads(text), dict) else text
    except orjson.JSONDecodeError:
        return text


def _wrap(call: Json, text: str | None) -> Json:
    if text is None:
        return call
    return {**call, "function": {**call["function"], "arguments": orjson.dumps({UNPARSED: text}).decode()}}


def _join_opening(messages: list[Json]) -> list[Json]:
    """Make the system messages at the start one: some templates read only the first or the last of them."""
    n_opening = next((n for n, message in enumerate(messages) if not _is_plain_system(message)), len(messages))
    if n_opening < 2:
        return messages
    texts = [text for message in messages[:n_opening] if (text := _read_text(message))]
    return [{**messages[0], "content": _GAP.join(texts)}, *messages[n_opening:]]


def _turn_to_reminders(messages: list[Json]) -> list[Json]:
    """Have the user say later system messages. Where they stand: moved to the start, each would change every token."""
    return [
        message if place == 0 or message["role"] not in _SYSTEM else _remind(message)
        for place, message in enumerate(messages)
    ]


def _remind(message: Json) -> Json:
    content = message.get("content")
    if isinstance(content, list) and not all(map(_is_text, content)):
        return {
            "role": "user",
            "content": [*_as_parts("<system-reminder>"), *content, *_as_parts("</system-reminder>")],
        }
    return {"role": "user", "content": f"<system-reminder>\n{_read_text(message)}\n</system-reminder>"}


def _join_turns(messages: list[Json]) -> list[Json]:
    """Make neighbours of one role one message; results of tools stay apart, each with its call's id."""
    made: list[Json] = []
    for message in messages:
        if made and message["role"] == made[-1]["role"] and message["role"] in ("user", "assistant"):
            made[-1] = _join(made[-1], message)
        else:
            made.append(message)
    return made


def _join(first: Json, second: Json) -> Json:
    joined = {**first, **{name: value for name, value in second.items() if value is not None}}
    for name in ("content", "reasoning_content"):
        if name in joined:
            joined[name] = _join_contents(first.get(name), second.get(name))
    if calls := [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]:
        joined["tool_calls"] = calls
    return joined


def _join_contents(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + _GAP + second
    return [*_as_parts(first), *_as_parts(second)]


def _tell_system_by_user(messages: list[Json]) -> list[Json]:
    if not messages or messages[0]["role"] not in _SYSTEM:
        return messages
    told, rest = {"role": "user", "content": messages[0].get("content")}, messages[1:]
    return _join_turns([told, *rest])


def _is_plain_system(message: Json) -> bool:
    """Whether it is a system message of nothing but text."""
    if message.get("role") not in _SYSTEM or message.keys() - _PLAIN:
        return False
    content = message.get("content")
    return not isinstance(content, list) or all(_is_text(part) for part in content)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _read_text(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if _is_text(part))


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_STEPS: tuple[Callable[[list[Json]], list[Json]], ...] = (
    _join_opening,
    _turn_to_reminders,
    _join_turns,
    _tell_system_by_user,
)
