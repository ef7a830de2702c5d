"""The session rule: which earlier step does a request go on from? Pure; the pool is asked through `Lookup`.

Calls that name their trajectory or session are placed by that name (`placing.py`); inside it, and for all other calls,
this decides. In order: the *anchor*, that is, the last assistant item of the request is something we returned (by the
whole history up to it, else by a tool-call id of ours, else by its text and what was said just before); the longest
beginning of the history that an earlier call had; else it is new. Never by exact prefix alone: real clients rewrite,
cut and re-order what they send.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache

from apps.trajectories import messages as chat
from apps.trajectories.messages import Message, hash_text

# What a step is found by. STATE: its whole history and answer; TALK: the same without system messages; TURN: the last
# message and the answer's text; TEXT: the answer's text; CALL: an id of its tool calls; HISTORY: what it was asked.
STATE, TALK, TURN, TEXT, CALL, HISTORY = "state", "talk", "turn", "text", "call", "history"
# What a retry is found by. BODY: the request's bytes; and of a call that failed, FAILED: the same; CUT: its history;
# STEM: its history before the last user message.
BODY, FAILED, CUT, STEM = "body", "failed", "cut", "stem"
# What work for a session is found by, under the scope of its key: the client's trace id.
TRACE = "trace"

_UNIQUE_ID_LENGTH = 16  # an id of ours is longer; a shorter one may be some client's own "call_1"
_N_LONGEST = 16
_TELLING_TEXT_LENGTH = 64  # a shorter answer ("OK") is given in many sessions


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a request tells, made comparable. Transient messages are left out."""

    digests: tuple[str, ...]
    roles: tuple[str, ...]
    answers: dict[int, Message]
    """The assistant items by their place in `digests`."""

    @cached_property
    def last_answer_at(self) -> int:
        """The place of the last assistant item, -1 when there is none."""
        return max(self.answers, default=-1)

    @property
    def last_answer(self) -> Message | None:
        return self.answers.get(self.last_answer_at)

    @cached_property
    def chained(self) -> list[str]:
        """Entry k stands for the first k messages."""
        return chat.chain_digests(self.digests)

    @cached_property
    def talk(self) -> tuple[str, ...]:
        """The messages without system ones (their text may hold today's date)."""
        return self._without_system(self.digests)

    def talk_before_answer(self) -> tuple[str, ...]:
        """What came before the last assistant item, without system messages."""
        return self._without_system(self.digests[: self.last_answer_at])

    def system(self) -> tuple[str, ...]:
        return tuple(digest for digest, role in zip(self.digests, self.roles, strict=True) if role == "system")

    def stem(self) -> str:
        """A digest of what came before the last message if that is the user's, "" if it is not."""
        return self.chained[-2] if self.roles and self.roles[-1] == "user" else ""

    def _without_system(self, digests: Sequence[str]) -> tuple[str, ...]:
        return tuple([digest for digest, role in zip(digests, self.roles, strict=False) if role != "system"])


def read_story(messages: Sequence[Message]) -> Story:
    """Return the comparable form of a request's messages."""
    kept = [found for found in map(chat.look_at, messages) if found[0] is not None]
    return Story(
        digests=tuple([digest for digest, _, _ in kept if digest is not None]),
        roles=tuple([role for _, role, _ in kept]),
        answers={at: message for at, (_, role, message) in enumerate(kept) if role == "assistant"},
    )


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A step that a request may go on from. `load_story` gives what its own request told (it costs a read)."""

    step_id: str
    trajectory_id: str
    order: str  # sorts by time
    is_leaf: bool  # no step of the main chain goes on from it yet
    load_story: Callable[[], Story]
    chain: str = ""
    side_call: str = ""
    parent_id: str | None = None
    is_excluded: bool = False
    digests: frozenset[str] = field(default=frozenset())


Lookup = Callable[[Sequence[str]], list[Candidate]]
"""Returns steps that have any of the digests: a bounded number, those that nobody has gone on from first, then the
latest."""


@lru_cache(maxsize=5000)  # each is asked for when it is read ahead, when a place is sought and when a step is made
def scoped(scope: str, kind: str, value: str) -> str:
    """Return the digest under which a step is found. `scope` (a key or a trajectory) keeps sessions apart."""
    return hash_text(scope, kind, value)


def step_digests(scope: str, *, story: Story, answer: Message, body_digest: str, is_failed: bool = False) -> list[str]:
    """Return everything by which a later request may find this step."""
    answer_digest = chat.digest_message(answer) or ""
    found = [(HISTORY, story.chained[-1]), (BODY, body_digest)]
    # As the chain of a later request goes on: its entry for our messages and the answer to them.
    found += [(STATE, hash_text(story.chained[-1], answer_digest)), (TALK, _talk(story.talk, answer_digest))]
    found += [(CALL, call_id) for call_id in chat.call_ids_of(answer)]
    if text := chat.digest_answer_text(answer):
        found += [(TEXT, text), (TURN, _turn(story.talk, text))]
    if is_failed:
        found += [(FAILED, body_digest), (CUT, story.chained[-1]), (STEM, story.stem())]
    return [scoped(scope, kind, value) for kind, value in found]


def _talk(talk: Sequence[str], answer_digest: str) -> str:
    return chat.hash_digests([*talk, answer_digest]) if answer_digest else hash_text(*talk, "")


def _turn(talk: Sequence[str], answer_text_digest: str) -> str:
    return hash_text(talk[-1] if talk else "", answer_text_digest)


def find_parent(scope: str, *, story: Story, lookup: Lookup, is_scope_one_session: bool) -> Candidate | None:
    """Return the step that the request goes on from, None when it starts anew.

    `is_scope_one_session`: every step of the scope belongs to the session already, so that weaker evidence is enough.
    """
    if story.last_answer is not None:
        found = (
            _find_by_state(scope, story, lookup)
            or _find_by_call(scope, story, lookup, is_scope_one_session=is_scope_one_session)
            or _find_by_talk(scope, story, lookup, is_scope_one_session=is_scope_one_session)
        )
        if found is not None:
            return found
    return _find_by_beginning(scope, story, lookup, is_scope_one_session=is_scope_one_session)


def state_digests(scope: str, story: Story) -> list[str]:
    """Return what `find_parent` asks for first: nothing when the request has no assistant item."""
    return [scoped(scope, STATE, story.chained[story.last_answer_at + 1])] if story.last_answer is not None else []


def _find_by_state(scope: str, story: Story, lookup: Lookup) -> Candidate | None:
    """The whole history up to and with the last assistant item is what we saw and returned."""
    alike = lookup(state_digests(scope, story))
    found = [candidate for candidate in alike if not _is_replaced(candidate, alike)]
    # Of equal conversations the one that nobody has gone on from: twins that run side by side stay apart.
    return max(found, key=lambda candidate: (candidate.is_leaf, candidate.order), default=None)


def _is_replaced(candidate: Candidate, alike: Sequence[Candidate]) -> bool:
    """Whether a retry that was answered with the same words has taken its place: it is no twin."""
    return candidate.is_excluded and any(
        (other.trajectory_id, other.parent_id, other.is_excluded)
        == (candidate.trajectory_id, candidate.parent_id, False)
        and other.order > candidate.order
        for other in alike
    )


def _find_by_call(scope: str, story: Story, lookup: Lookup, *, is_scope_one_session: bool) -> Candidate | None:
    call_ids = chat.call_ids_of(story.last_answer)
    found = lookup([scoped(scope, CALL, call_id) for call_id in call_ids]) if call_ids else []
    if len(found) == 1 and all(_is_unique(call_id) for call_id in call_ids):
        return found[0]

    def accepts(overlap: Overlap) -> bool:
        return is_scope_one_session or overlap.prefix >= 1 or overlap.suffix >= 1

    return _best_by_history(story, found, accepts=accepts)


def _is_unique(call_id: str) -> bool:
    return len(call_id) >= _UNIQUE_ID_LENGTH


def _find_by_talk(scope: str, story: Story, lookup: Lookup, *, is_scope_one_session: bool) -> Candidate | None:
    """The client has changed its system text, or left something out that was said long before."""
    text = chat.digest_answer_text(story.last_answer)
    before = story.talk_before_answer()
    answer = story.digests[story.last_answer_at]
    found = lookup([scoped(scope, TALK, _talk(before, answer))])
    if not found and text and before:
        found = lookup([scoped(scope, TURN, _turn(before, text))])
    is_telling = is_scope_one_session or len(chat.text_of(story.last_answer)) >= _TELLING_TEXT_LENGTH

    def accepts(overlap: Overlap) -> bool:
        return overlap.suffix >= 1 and (is_telling or overlap.is_same_system or overlap.suffix >= 2)

    if best := _best_by_history(story, found, accepts=accepts):
        return best
    if is_scope_one_session and text:
        # Nothing else is left of the history when a client has compacted all of it but our answer.
        found = lookup([scoped(scope, TEXT, text)])
        return found[0] if len(found) == 1 and found[0].is_leaf else None
    return None


def _find_by_beginning(scope: str, story: Story, lookup: Lookup, *, is_scope_one_session: bool) -> Candidate | None:
    """The request begins with all of an earlier call (a client that rewrites what we answered, a call that we lack)."""
    lengths = dict(_beginnings(scope, story, is_scope_one_session=is_scope_one_session))
    longest_first = sorted(lengths, key=lambda digest: -lengths[digest])
    # In two goes: many sessions may share a short beginning, and only so many candidates come back.
    found = (lookup(longest_first[:_N_LONGEST]) if lengths else []) or (
        lookup(longest_first[_N_LONGEST:]) if len(lengths) > _N_LONGEST else []
    )

    def rank(candidate: Candidate) -> tuple[int, bool, str]:
        length = max(lengths.get(digest, 0) for digest in candidate.digests)
        return length, candidate.is_leaf, candidate.order

    return max(found, key=rank, default=None)


def _beginnings(scope: str, story: Story, *, is_scope_one_session: bool) -> Iterator[tuple[str, int]]:
    """Yield what an earlier call may be found by and how many messages of the request it would account for."""
    for at, answer in story.answers.items():
        if at < story.last_answer_at:
            yield scoped(scope, STATE, story.chained[at + 1]), at + 1
            for call_id in chat.call_ids_of(answer):
                if is_scope_one_session or _is_unique(call_id):
                    yield scoped(scope, CALL, call_id), at + 1
    # Outside a named session something must have been answered, and asked, before: else every greeting is one session.
    first_user = next((at for at, role in enumerate(story.roles) if role == "user"), len(story.roles))
    for length in range(first_user + 1, len(story.digests)):
        if is_scope_one_session or length in story.answers:
            yield scoped(scope, HISTORY, story.chained[length]), length


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of two histories agrees, from the start and from the end, in messages."""

    prefix: int
    suffix: int
    is_same_system: bool


def measure_overlap(story: Story, earlier: Story) -> Overlap:
    """Compare what came before the request's last assistant item with the whole of an earlier request."""
    mine, theirs = story.talk_before_answer(), earlier.talk
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
