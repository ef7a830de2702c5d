"""Recognises tokens that this platform generated itself: their version, sampling and log-probs are then facts of the
serving side, whatever a client says of them. Reads the ledger and writes nothing.

A call is one step at most: of several calls that said the same, each is found once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import CharField, QuerySet
from django.db.models.functions import MD5

from apps.registry.models import Version
from apps.trajectories.calls import GENERATE, Answer, Call, read_call
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory

MAX_FOUND = 4000
Spoken = tuple[bytes, bytes]
"""Prompt and completion, int32."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One answer of one call. `step`: what it is already in the trajectory in question, None if nothing."""

    call: Call
    answer: Answer
    version_id: str | None
    step: Step | None


class Generations:
    """The calls that spoke what is now submitted to a trajectory, each to be taken once."""

    def __init__(self, trajectory: Trajectory, spoken: Iterable[Spoken]) -> None:
        wanted = set(spoken)
        self._waiting: dict[Spoken, list[Generation]] = defaultdict(list)
        exchanges = _find_exchanges(trajectory.project_id, wanted)
        steps = {(step.exchange_id, step.choice): step for step in _find_steps(exchanges)}
        versions = set(_find_versions(exchanges))
        for exchange in exchanges:
            version_id = exchange.version_id if exchange.version_id in versions else None
            call = read_call(exchange)
            for answer in call.answers:
                said = (bytes(exchange.prompt_token_ids or b""), answer.token_ids)
                step = steps.get((exchange.id, answer.choice))
                if said in wanted and (step is None or step.trajectory_id == trajectory.id):
                    found = Generation(call=call, answer=answer, version_id=version_id, step=step)
                    self._waiting[said].append(found)

    def take(self, spoken: Spoken) -> Generation | None:
        """Return the oldest call that said this and has not been taken; one that is a step already comes first."""
        waiting = self._waiting.get(spoken)
        if not waiting:
            return None
        place = next((place for place, generation in enumerate(waiting) if generation.step is not None), 0)
        return waiting.pop(place)


def _find_exchanges(project_id: str, wanted: set[Spoken]) -> list[Exchange]:
    if not wanted:
        return []
    digests = {hashlib.md5(prompt, usedforsecurity=False).hexdigest() for prompt, _ in wanted}
    rows = Exchange.objects.annotate(prompt_md5=MD5("prompt_token_ids", output_field=CharField())).filter(
        dialect=GENERATE,
        project_id=project_id,
        status=ExchangeStatus.COMPLETE,
        is_exact=True,
        prompt_md5__in=digests,
        completion_token_ids__overlap=list({completion for _, completion in wanted}),
    )
    return sorted(rows.order_by("-id")[:MAX_FOUND], key=lambda exchange: exchange.id)


def _find_steps(exchanges: list[Exchange]) -> QuerySet[Step]:
    return Step.objects.filter(exchange_id__in=[exchange.id for exchange in exchanges])


def _find_versions(exchanges: list[Exchange]) -> QuerySet[Version, str]:
    rows = Version.objects.filter(pk__in={exchange.version_id for exchange in exchanges})
    return rows.values_list("id", flat=True)


def find_steps_saying(*, project_id: str, prompt: bytes, completion: bytes) -> list[Step]:
    """Return the project's steps that a call of the token door made or that were submitted of one, newest first."""
    exchanges = _find_exchanges(project_id, {(prompt, completion)})
    said = [exchange for exchange in exchanges if completion in map(bytes, exchange.completion_token_ids)]
    rows = _find_steps(said).select_related("trajectory").order_by("-id")
    return [step for step in rows if bytes(step.completion_token_ids) == completion]
