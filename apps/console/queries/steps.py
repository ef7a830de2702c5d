"""What the page of one trajectory shows: its steps in order, their words, tokens, labels, and where they went."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any

from django.db.models import QuerySet

from apps.accounts.models import User
from apps.console.break_hints import BREAK_HINTS
from apps.console.queries.imports import find_import
from apps.console.queries.rewards import own_step_values
from apps.console.queries.tokens import read_tokens
from apps.console.transcript import Message, decode_json, iterate_images, pretty_json, read_message, read_messages
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.registry.models import Version
from apps.training.models import BatchTrajectory
from apps.trajectories.datasets.models import DatasetMember, Import
from apps.trajectories.messages import says_the_same
from apps.trajectories.models import Exchange, ExchangeStatus, PrefixBreak, Step, Trajectory
from apps.trajectories.trie import load_messages, read_new_messages

PER_PAGE = 50
SLOW_S, SLOW_START_S = 10.0, 2.0
MESSAGES_SHOWN = 200  # the last of a whole prompt
RAW_SHOWN = 200_000  # characters of each part
# What a card does not need; of a parent it needs the index alone.
_HEAVY = ("tail_token_ids", "completion_token_ids", "logprobs", "answer_digests")
_PARENT_HEAVY = tuple(f"parent__{name}" for name in (*_HEAVY, "tail_messages", "metadata"))


@dataclass(frozen=True, kw_only=True)
class Badge:
    """A fact that one must know before trusting a step. `tone` picks the colour, the word carries the meaning."""

    word: str
    tone: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class StepCard:
    """One step: what was new in its prompt, and what was answered. `n_earlier`: how many messages came before; the last
    of them may be its parent's answer as the client spells it.
    """

    step: Step
    new_messages: list[Message]
    n_earlier: int
    answer: Message
    badges: list[Badge]
    branch_of: int | None
    own_value: float | None
    usage: str = ""  # what the engine counted, of a step whose own tokens are not known
    waited_s: float | None = None  # until the first token, of a call that was streamed
    is_call: bool = False  # it went through the gateway, so that its time was measured

    @property
    def n_left_out(self) -> int:
        """Characters of very long texts that come only when somebody asks for the whole step."""
        return sum(message.n_left_out for message in (*self.new_messages, self.answer))

    @property
    def is_told(self) -> bool:
        """Nobody measured it: an import says what was said, and neither how long it took nor how it was sampled."""
        return not self.step.is_exact and self.step.ended_at == self.step.started_at

    @property
    def seconds(self) -> float:
        return (self.step.ended_at - self.step.started_at).total_seconds()

    @property
    def is_slow(self) -> bool:
        """It took so long, in all or until the first token, that people ask where the time went."""
        return self.waited_s is not None and (self.seconds >= SLOW_S or self.waited_s >= SLOW_START_S)

    @property
    def answering_s(self) -> float:
        return self.seconds - (self.waited_s or 0)


@dataclass(frozen=True, kw_only=True)
class StepGroup:
    """Neighbouring steps of one kind: the main line, or side calls that stand folded."""

    is_side: bool
    cards: list[StepCard]

    @property
    def kinds(self) -> str:
        return ", ".join(sorted({card.step.side_call for card in self.cards}))


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """Up to fifty steps, and the indexes by which to page on."""

    groups: list[StepGroup]
    first: int
    previous_from: int | None
    next_from: int | None

    @property
    def cards(self) -> Iterator[StepCard]:
        return (card for group in self.groups for card in group.cards)


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a trajectory came from and where it went."""

    versions: list[Version]
    entries: list[BatchTrajectory]
    memberships: list[DatasetMember]
    imported: Import | None


def find_step(trajectory: Trajectory, step_id: str) -> Step:
    """Return a step of the trajectory, by id or by index, or raise NotFound."""
    rows = Step.objects.select_related("version__policy", "parent").filter(trajectory=trajectory)
    step = None
    if step_id.isdecimal() and len(step_id) < 9:
        step = rows.filter(index=int(step_id)).first()
    elif is_id(step_id, "step"):
        step = rows.filter(pk=step_id).first()
    if step is None:
        raise NotFound("this trajectory has no such step")
    return step


def read_window(trajectory: Trajectory, *, user: User, first: int) -> StepWindow:
    """Return up to fifty steps from index `first` on."""
    rows = _card_rows(trajectory).filter(index__gte=first)
    found = list(rows.order_by("index")[: PER_PAGE + 1])
    own = own_step_values(trajectory, user=user)
    cards = read_cards(found[:PER_PAGE], own=own)
    groups = [StepGroup(is_side=is_side, cards=list(group)) for is_side, group in groupby(cards, key=_is_side)]
    return StepWindow(
        groups=groups,
        first=first,
        previous_from=max(0, first - PER_PAGE) if first > 0 else None,
        next_from=found[PER_PAGE].index if len(found) > PER_PAGE else None,
    )


def _card_rows(trajectory: Trajectory) -> QuerySet[Step]:
    rows = Step.objects.select_related("version__policy", "parent").filter(trajectory=trajectory)
    return rows.prefetch_related("opening").defer(*_HEAVY, *_PARENT_HEAVY)


def _is_side(card: StepCard) -> bool:
    return bool(card.step.side_call)


def read_cards(steps: Sequence[Step], *, own: dict[str, float]) -> list[StepCard]:
    """Return cards for neighbouring steps of one trajectory."""
    cards = []
    previous_main: str | None = steps[0].parent_id if steps else None
    usages, waits = _read_usages(steps), _read_waits(steps)
    for step in steps:
        parent = step.parent if step.parent_id and step.parent_id != previous_main else None
        branch_of = parent.index if parent else None
        card = read_card(step, branch_of=branch_of, own_value=own.get(step.id), usage=usages.get(step.id, ""))
        is_call = step.exchange_id in waits
        cards.append(replace(card, waited_s=waits.get(step.exchange_id), is_call=is_call))
        if not step.side_call:
            previous_main = step.id
    return cards


def _read_usages(steps: Sequence[Step]) -> dict[str, str]:
    """Return, by step, what the engine counted in calls whose tokens are not known: "12 + 3"."""
    by_exchange = {step.exchange_id: step.id for step in steps if step.exchange_id and not step.is_exact}
    if not by_exchange:
        return {}
    usages = {}
    for exchange in Exchange.objects.filter(pk__in=by_exchange).only("response", "stem").prefetch_related("stem"):
        answer = decode_json(exchange.response)
        counts = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(counts, dict):
            continue
        n_in = counts.get("prompt_tokens", counts.get("input_tokens"))
        n_out = counts.get("completion_tokens", counts.get("output_tokens"))
        if type(n_in) is int and type(n_out) is int:
            usages[by_exchange[exchange.pk]] = f"{n_in:,} + {n_out:,}"
    return usages


def _read_waits(steps: Sequence[Step]) -> dict[str, float | None]:
    """Return, by call, the seconds until the first token; None where the answer came whole, so that nobody knows."""
    calls = Exchange.objects.filter(pk__in=[step.exchange_id for step in steps])
    times = calls.values_list("pk", "started_at", "first_token_at", "is_streamed")
    return {
        pk: (first - start).total_seconds() if is_streamed and first else None
        for pk, start, first, is_streamed in times
    }


def read_card(
    step: Step, *, branch_of: int | None, own_value: float | None, is_whole: bool = False, usage: str = ""
) -> StepCard:
    """Return one step's card; `is_whole`: with its very long texts."""
    places = count()
    new = read_new_messages(step)
    shown = read_messages(new, is_whole=is_whole, places=places)
    is_echoed = step.parent is not None and says_the_same(new[:1], decode_json(step.parent.answer))
    return StepCard(
        step=step,
        new_messages=shown[1:] if is_echoed else shown,
        n_earlier=step.shared_messages + is_echoed,
        answer=read_message(decode_json(step.answer) or {"role": "assistant"}, is_whole=is_whole, places=places),
        badges=list(read_badges(step)),
        branch_of=branch_of,
        own_value=own_value,
        usage=usage,
    )


def read_image(step: Step, place: int) -> tuple[str, bytes]:
    """Return the media type and the bytes of a picture that is new in the step. Raises NotFound."""
    said = [*read_new_messages(step), decode_json(step.answer)]
    found = next((image for number, image in enumerate(iterate_images(said)) if number == place), None)
    if found is None:
        raise NotFound("this step has no such picture")
    media_type, data = found
    try:
        return media_type, b64decode(data, validate=True)
    except ValueError as error:
        raise NotFound("this picture is broken: it is no base64") from error


def read_badges(step: Step) -> Iterator[Badge]:
    """Say what is unusual about a step."""
    if step.side_call:
        yield Badge(word=f"side call: {step.side_call}", tone="violet", hint="Beside the main line; not trained on")
    if step.status == ExchangeStatus.ABORTED:
        yield Badge(word="aborted", tone="warn", hint="The client went away; what had come is kept")
    if step.status == ExchangeStatus.ERROR:
        yield Badge(word="error", tone="bad", hint="No usable answer came")
    yield from _read_token_badges(step)
    if step.finish_reason == "length":
        yield Badge(word="cut off", tone="warn", hint="The answer reached its token limit")
    if step.is_excluded:
        yield Badge(word="excluded", tone="warn", hint="Kept out of training")


def _read_token_badges(step: Step) -> Iterator[Badge]:
    if not step.is_exact:
        yield Badge(
            word="text only", tone="warn", hint="No exact token ids or log-probs; not usable for policy gradients"
        )
    if step.token_check.startswith("redacted"):
        hint = "Taken out before anything was stored; the call's tokens would still tell, so they are not kept"
        yield Badge(word=step.token_check, tone="warn", hint=hint)
    elif step.token_check:
        yield Badge(word="tokens doubted", tone="warn", hint=f"Why: {step.token_check}")
    if step.prefix_break:
        cause = PrefixBreak(step.prefix_break)
        yield Badge(word=f"break: {cause.label.lower()}", tone="warn", hint=BREAK_HINTS[cause])
    if step.constraints:
        yield Badge(word="constrained", tone="warn", hint=f"Not trained on: sampled under {step.constraints}")


def read_lineage(trajectory: Trajectory) -> Lineage:
    """Return the versions that spoke and the batches that took the trajectory."""
    spoke = Step.objects.filter(trajectory=trajectory).exclude(version=None).order_by().values("version_id").distinct()
    versions = Version.objects.filter(pk__in=spoke).select_related("policy").order_by("number")
    entries = BatchTrajectory.objects.filter(trajectory=trajectory).select_related("batch__run").order_by("pk")
    memberships = DatasetMember.objects.filter(trajectory=trajectory).select_related("dataset").order_by("-pk")
    return Lineage(
        versions=list(versions[:20]),
        entries=list(entries[:20]),
        memberships=list(memberships[:20]),
        imported=find_import(trajectory),
    )


def find_exchange(step: Step) -> Exchange | None:
    """Return the raw call behind a step."""
    return Exchange.objects.filter(pk=step.exchange_id).first()


def cut_raw(raw: dict[str, str]) -> dict[str, str]:
    """Return what a page shows of it: the beginning of what is very long, and a word about the rest."""
    return {
        name: text if len(text) <= RAW_SHOWN else f"{text[:RAW_SHOWN]}\n… {len(text) - RAW_SHOWN:,} more characters"
        for name, text in raw.items()
    }


def read_raw(step: Step) -> dict[str, str]:
    """Return what was sent and what came back, as indented JSON, whole."""
    exchange = find_exchange(step)
    if exchange is None:
        return {
            "answer": pretty_json(decode_json(step.answer)),
            "new messages": pretty_json(decode_json(step.tail_messages)),
        }
    return read_raw_call(exchange)


def read_raw_call(exchange: Exchange) -> dict[str, str]:
    """Return the call itself, as indented JSON."""
    return {
        "request": pretty_json(decode_json(exchange.request)),
        "response": pretty_json(decode_json(exchange.response)),
        "sampling": pretty_json(decode_json(exchange.sampling)),
        "headers kept": pretty_json(decode_json(exchange.headers)),
    }


def read_view(step: Step, view: str) -> dict[str, Any]:
    """Return what one of the step's other views shows."""
    match view:
        case "tokens" | "entropy":
            return {"tokens": read_tokens(step, by_entropy=view == "entropy")}
        case "raw":
            return {"raw": cut_raw(read_raw(step))}
        case "prompt":
            messages = load_messages(step.id)
            n_hidden = max(0, len(messages) - MESSAGES_SHOWN)
            return {"prompt": read_messages(messages[n_hidden:]), "n_messages": len(messages), "n_hidden": n_hidden}
        case "whole":
            return {"card": read_card(step, branch_of=None, own_value=None, is_whole=True)}
    return {}
