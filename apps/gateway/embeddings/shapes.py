"""What an embeddings request may hold; the engine checks what it alone understands."""

from dataclasses import dataclass
from typing import Any

from apps.gateway.bodies import read_json
from apps.gateway.checks import COMMON, Check, check_fields, is_token_ids, wrong
from apps.gateway.dialect import Json
from apps.gateway.known_fields import IGNORED, keep_meaningful, refuse_unknown

MAX_INPUTS = 2048  # as OpenAI has it
FLOAT, BASE64 = "float", "base64"

# OpenAI's, then what vLLM understands beyond them.
KNOWN = IGNORED | {
    "dimensions",
    "encoding_format",
    "input",
    "model",
    "add_special_tokens",
    "cache_salt",
    "mm_processor_kwargs",
    "priority",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
}

_CHECKS: tuple[Check, ...] = (
    ("encoding_format", lambda value: value in (FLOAT, BASE64), f"`{FLOAT}` or `{BASE64}`"),
    ("dimensions", lambda value: type(value) is int and value > 0, "a positive integer"),
    *(check for check in COMMON if check[0] == "model"),
)


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A request that has been looked over. `engine_body` lacks the model's name."""

    model: str
    engine_body: Json
    n_inputs: int
    is_base64: bool


def read_embeddings_request(raw: bytes) -> EmbeddingsRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault."""
    body = read_json(raw)
    refuse_unknown(body, KNOWN)
    check_fields(body, _CHECKS)
    return EmbeddingsRequest(
        model=body["model"],
        engine_body=keep_meaningful(body),
        n_inputs=_count_inputs(body.get("input")),
        is_base64=body.get("encoding_format") == BASE64,
    )


def _count_inputs(given: Any) -> int:
    """Return how many vectors this asks for: a text, token ids, or a list of either. Raises ApiError (400)."""
    if given in (None, "", []):
        raise wrong("input", "must not be empty" if given is not None else "is required")
    if isinstance(given, str) or is_token_ids(given):
        return 1
    if not isinstance(given, list):
        raise wrong("input", "must be a string, a list of token ids, or a list of either")
    if len(given) > MAX_INPUTS:
        raise wrong("input", f"may hold no more than {MAX_INPUTS} texts")
    for index, one in enumerate(given):
        if not (isinstance(one, str) and one) and not is_token_ids(one):
            raise wrong(f"input[{index}]", "must be a string that is not empty, or a list of token ids")
    return len(given)
