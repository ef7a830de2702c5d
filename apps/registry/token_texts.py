"""Texts of token ids, for people's eyes and for rules. The web side has no tokenizer: it asks an engine, and does
without.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.core.cache import cache

from apps.core.errors import ServiceError
from apps.registry.client import EngineClient
from apps.registry.models import Engine, EngineState

log = structlog.get_logger(__name__)

N_AT_ONCE = 8
KEPT_S = 86_400


def read_token_texts(*, base_model: str, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token, [] when no engine with this base model answers. Each id is asked for once."""
    keys = {token_id: f"token-text:{base_model}:{token_id}" for token_id in token_ids}
    kept: dict[str, str] = cache.get_many(keys.values())
    missing = [token_id for token_id, key in keys.items() if key not in kept]
    if missing:
        engine = _find_engine(base_model)
        if engine is None:
            return []
        try:
            found = _ask(engine, base_model, missing)
        except ServiceError as error:
            log.warning("tokens.unread", engine=engine.base_url, error=str(error))
            return []
        fresh = {keys[token_id]: text for token_id, text in found.items()}
        cache.set_many(fresh, KEPT_S)
        kept |= fresh
    return [kept[keys[token_id]] for token_id in token_ids]


def read_text(*, base_model: str, token_ids: Sequence[int]) -> str | None:
    """Return the text of the tokens together, None when no engine with this base model answers."""
    engine = _find_engine(base_model)
    if engine is None:
        return None
    try:
        with EngineClient(engine.base_url) as client:
            return client.read_text(base_model, token_ids)
    except ServiceError as error:
        log.warning("tokens.unread", engine=engine.base_url, error=str(error))
        return None


def _find_engine(base_model: str) -> Engine | None:
    up = Engine.objects.replicas().filter(is_enabled=True, state=EngineState.UP)
    return up.filter(base_model=base_model).first()


def _ask(engine: Engine, base_model: str, token_ids: Sequence[int]) -> dict[int, str]:
    """Token by token: an engine joins what it is given at once."""
    with EngineClient(engine.base_url) as client, ThreadPoolExecutor(N_AT_ONCE) as threads:
        texts = threads.map(lambda token_id: client.read_text(base_model, [token_id]), token_ids)
        return dict(zip(token_ids, texts, strict=True))
