"""How undecided a version was before each token of an answer, as an engine that holds it tells. Loads no model: it
asks, and keeps what it was told.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic

import structlog
from django.core.cache import cache

from apps.core.contracts.arrays import pack_ids
from apps.core.errors import ServiceError
from apps.registry.client import TOP_LOGPROBS, EngineClient
from apps.registry.models import Version
from apps.registry.speaking import find_live_version, find_version_speaker, is_held

log = structlog.get_logger(__name__)

N_AT_ONCE = 32  # places in a call: agents wait in the same engine
PATIENCE_S = 5.0  # of a page that somebody waits for: then no further call begins. What came is kept
READ_S = 20.0  # the first call of an adapter compiles on some devices
KEPT_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Entropies:
    """Lower bounds in nats of the first `len(values)` tokens of an answer; `error` says why there are no more."""

    values: list[float]
    error: str = ""


def find_scorer(project_id: str, *, spoke: Version | None) -> Version:
    """Return the version that spoke if an engine holds it, else the live one.

    Raises NotFound when the project has no policy.
    """
    if spoke is not None and is_held(spoke):
        return spoke
    return find_live_version(project_id)


def read_entropies(
    version: Version, *, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float
) -> Entropies:
    """Ask an engine that holds the version how likely it held what could stand in each token's place, until all have
    been asked or patience ends; the next call goes on from there.
    """
    ids = [*prompt_ids, *completion_ids]
    digest = sha256(pack_ids(ids)).hexdigest()
    key = f"entropies:{version.pk}:{temperature:g}:{len(prompt_ids)}:{digest}"
    values: list[float] = [*cache.get(key, ())]
    until = monotonic() + PATIENCE_S
    try:
        speaker = find_version_speaker(version) if len(values) < len(completion_ids) else None
        while speaker is not None and len(values) < len(completion_ids) and monotonic() < until:
            places = range(len(values), min(len(values) + N_AT_ONCE, len(completion_ids)))
            prompts = [ids[: len(prompt_ids) + place] for place in places]
            with EngineClient(speaker.engine.base_url) as client:
                tops = client.list_top_logprobs(speaker.model, prompts, temperature=temperature, read_s=READ_S)
            values += [bound_entropy(top.values()) for top in tops]
            cache.set(key, values, KEPT_S)
    except ServiceError as error:
        log.warning("entropies.unread", version=version.pk, error=error.message)
        return Entropies(values=values, error=error.message)
    return Entropies(values=values)


def bound_entropy(logprobs: Iterable[float]) -> float:
    """Return the least entropy (nats) of a distribution whose likeliest tokens have these log-probs.

    What is left, r, lies on tokens of which none is likelier than the last of these nor than r: it adds
    -r log(min(r, last)) or more. A token beyond the first TOP_LOGPROBS was sampled from what is left.
    """
    first = sorted(logprobs, reverse=True)[:TOP_LOGPROBS]
    known = sum(-math.exp(logprob) * logprob for logprob in first)
    left = 1.0 - sum(map(math.exp, first))
    if left <= 0.0:  # rounding
        return known
    return known - left * min(math.log(left), first[-1])
