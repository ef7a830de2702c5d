"""The session rule: which earlier step does a request go on from? Pure; the pool is asked through `Lookup`.

Calls that name their trajectory or session are placed by that name (`placing.py`); inside it, and for all other calls,
this decides. In order: the *anchor*, that is, the last assistant item of the request is something we returned (by the
whole history up to it, else by a tool-call id of ours, else by its text; of several the one with the longest common
history); the longest history that an earlier request had; else it is new. Never by exact prefix alone: real clients
rewrite, cut and re-order what they send.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from apps.trajectories import messages as chat
from apps.trajectories.messages import Message, hash_text

STATE, CALL, TEXT, HISTORY, BODY = "state", "call", "text", "history", "body"

_UNIQUE_ID_LENGTH = 16  # an id of ours is longer; a shorter one may be some client's own "call_1"
_TELLING_TEXT_LENGTH = 64  # a shorter answer ("OK") is given in many sessions


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a request tells, made comparable. Transient messages are left out."""

    digests: tuple[str, ...]
    roles: tuple[str, ...]
    last_answer: Message | None
    last_answer_at: int  # its place in `digests`, -1 when there is none

    @cached_property
    def chained(self) -> list[str]:
        """Entry k stands for the first k messages."""
        return chat.chain_digests(self.digests)

    def before_answer(self) -> tuple[str, ...]:
        """What came before the last assistant item, without system messages (their text may hold today's date)."""
        return _without_system(self.digests[: self.last_answer_at], self.roles)

    def system(self) -> tuple[str, ...]:
        return tuple(digest for digest, role in zip(self.digests, self.roles, strict=True) if role == "system")


def read_story(messages: Sequence[Message]) -> Story:
    """Return the comparable form of a request's messages."""
    kept = [(message, digest) for message in messages if (digest := chat.digest_message(message)) is not None]
    roles = tuple(chat.role_of(message) for message, _ in kept)
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return Story(
        digests=tuple(digest for _, digest in kept),
        roles=roles,
        last_answer=kept[last][0] if last >= 0 else None,
        last_answer_at=last,
    )


def _without_system(digests: Sequence[str], roles: Sequence[str]) -> tuple[str, ...]:
    return tuple(digest for digest, role in zip(digests, roles, strict=False) if role != "system")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A step that a request may go on from. `load_story` gives what its own request told (it costs a read)."""

    step_id: str
    trajectory_id: str
    order: str  # sorts by time
    is_leaf: bool  # no step of the main chain goes on from it yet
    load_story: Callable[[], Story]
    digests: frozenset[str] = field(default=frozenset())


Lookup = Callable[[Sequence[str]], list[Candidate]]
"""Returns the latest steps that have any of the digests."""


def scoped(scope: str, kind: str, value: str) -> str:
    """Return the digest under which a step is found. `scope` (a key or a trajectory) keeps sessions apart."""
    return hash_text(scope, kind, value)


def step_digests(scope: str, *, story: Story, answer: Message, body_digest: str) -> list[str]:
    """Return everything by which a later request may find this step."""
    history = story.chained[-1]
    answer_digest = chat.digest_message(answer) or ""
    found = [scoped(scope, STATE, hash_text(history, answer_digest)), scoped(scope, HISTORY, history)]
    found += [scoped(scope, CALL, call_id) for call_id in chat.call_ids_of(answer)]
    if text := chat.digest_answer_text(answer):
        found.append(scoped(scope, TEXT, text))
    return [*found, scoped(scope, BODY, body_digest)]


def find_parent(scope: str, *, story: Story, lookup: Lookup, is_scope_one_session: bool) -> Candidate | None:
    """Return the step that the request goes on from, None when it starts anew.

    `is_scope_one_session`: every step of the scope belongs to the session already, so that weaker evidence is enough.
    """
    if story.last_answer is not None:
        found = (
            _find_by_state(scope, story, lookup)
            or _find_by_call(scope, story, lookup)
            or _find_by_text(scope, story, lookup, is_scope_one_session=is_scope_one_session)
        )
        if found is not None:
            return found
    return _find_by_history(scope, story, lookup, is_scope_one_session=is_scope_one_session)


def _find_by_state(scope: str, story: Story, lookup: Lookup) -> Candidate | None:
    """The whole history up to and with the last assistant item is what we saw and returned."""
    found = lookup([scoped(scope, STATE, story.chained[story.last_answer_at + 1])])
    # Of equal conversations the one that nobody has gone on from: twins that run side by side stay apart.
    return max(found, key=lambda candidate: (candidate.is_leaf, candidate.order), default=None)


def _find_by_call(scope: str, story: Story, lookup: Lookup) -> Candidate | None:
    call_ids = chat.call_ids_of(story.last_answer)
    found = lookup([scoped(scope, CALL, call_id) for call_id in call_ids]) if call_ids else []
    if len(found) == 1 and all(len(call_id) >= _UNIQUE_ID_LENGTH for call_id in call_ids):
        return found[0]
    return _best_by_history(story, found, accepts=lambda overlap: overlap.prefix >= 1 or overlap.suffix >= 1)


def _find_by_text(scope: str, story: Story, lookup: Lookup, *, is_scope_one_session: bool) -> Candidate | None:
    digest = chat.digest_answer_text(story.last_answer)
    if not digest:
        return None
    found = lookup([scoped(scope, TEXT, digest)])
    if is_scope_one_session and len(found) == 1 and found[0].is_leaf:
        return found[0]  # Nothing else is left of the history when a client has compacted all of it but our answer.
    is_telling = is_scope_one_session or len(chat.text_of(story.last_answer)) >= _TELLING_TEXT_LENGTH

    def accepts(overlap: Overlap) -> bool:
        return overlap.suffix >= 1 and (is_telling or overlap.is_same_system or overlap.suffix >= 2)

    return _best_by_history(story, found, accepts=accepts)


def _find_by_history(scope: str, story: Story, lookup: Lookup, *, is_scope_one_session: bool) -> Candidate | None:
    """The request begins with all of an earlier request (a client that rewrites what we answered)."""
    # Outside a named session something must have been answered, and asked, before: else every greeting is one session.
    lengths = [
        length
        for length in range(len(story.digests) - 1, 0, -1)
        if "user" in story.roles[:length] and (is_scope_one_session or _is_answered(story, length))
    ]
    by_digest = {scoped(scope, HISTORY, story.chained[length]): length for length in lengths}
    found = lookup(list(by_digest)) if by_digest else []

    def rank(candidate: Candidate) -> tuple[int, bool, str]:
        length = max(by_digest.get(digest, 0) for digest in candidate.digests)
        return length, candidate.is_leaf, candidate.order

    return max(found, key=rank, default=None)


def _is_answered(story: Story, length: int) -> bool:
    return length < len(story.roles) and story.roles[length] == "assistant"


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of two histories agrees, from the start and from the end, in messages."""

    prefix: int
    suffix: int
    is_same_system: bool


def measure_overlap(story: Story, earlier: Story) -> Overlap:
    """Compare what came before the request's last assistant item with the whole of an earlier request."""
    mine = story.before_answer()
    theirs = _without_system(earlier.digests, earlier.roles)
    return Overlap(
        prefix=_common_length(mine, theirs),
        suffix=_common_length(mine[::-1], theirs[::-1]),
        is_same_system=story.system() == earlier.system(),
    )


def _best_by_history(story: Story, found: list[Candidate], *, accepts: Callable[[Overlap], bool]) -> Candidate | None:
    measured = [(measure_overlap(story, candidate.load_story()), candidate) for candidate in found]
    accepted = [(overlap, candidate) for overlap, candidate in measured if accepts(overlap)]

    def rank(pair: tuple[Overlap, Candidate]) -> tuple[int, bool, bool, str]:
        overlap, candidate = pair
        return overlap.prefix + overlap.suffix, overlap.is_same_system, candidate.is_leaf, candidate.order

    return max(accepted, key=rank)[1] if accepted else None


def _common_length(left: Sequence[str], right: Sequence[str]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length


def is_open_at(*, completed_at: datetime | None, moment: datetime) -> bool:
    """Say whether a trajectory was still open when a call ended: folding late does not lose the call."""
    return completed_at is None or moment <= completed_at
