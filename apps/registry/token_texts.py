"""Texts of token ids, for people's eyes only. The web side has no tokenizer: it asks an engine, and does without."""

from collections.abc import Sequence

import structlog
from django.core.cache import cache

from apps.core.errors import ServiceError
from apps.registry.client import EngineClient
from apps.registry.models import Engine, EngineState

log = structlog.get_logger(__name__)

AT_A_TIME = 512  # fits the context of every engine
KEPT_S = 3600


def read_token_texts(*, base_model: str, token_ids: Sequence[int], cache_key: str) -> list[str]:
    """Return the text of each token, [] when no engine with this base model answers. `cache_key` names the ids."""
    kept: list[str] | None = cache.get(f"token-texts:{cache_key}")
    if kept is not None:
        return kept
    engine = Engine.objects.filter(is_enabled=True, state=EngineState.UP, base_model=base_model).first()
    if engine is None or not token_ids:
        return []
    try:
        texts = _ask(engine, base_model, token_ids)
    except ServiceError as error:
        log.warning("tokens.unread", engine=engine.base_url, error=str(error))
        return []
    cache.set(f"token-texts:{cache_key}", texts, KEPT_S)
    return texts


def _ask(engine: Engine, base_model: str, token_ids: Sequence[int]) -> list[str]:
    texts: list[str] = []
    with EngineClient(engine.base_url) as client:
        for start in range(0, len(token_ids), AT_A_TIME):
            texts += client.read_token_texts(base_model, token_ids[start : start + AT_A_TIME])
    return texts
