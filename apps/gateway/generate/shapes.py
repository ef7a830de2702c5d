"""What a token request may hold. Every field is known: one that is not would change the answer unseen.

Knows vLLM's names of sampling parameters; the engine itself checks their values.
"""

from typing import Any

from apps.gateway.bodies import read_json
from apps.gateway.capture import Wishes
from apps.gateway.checks import MAX_CHOICES, wrong
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.errors import bad_request
from apps.gateway.routes import DEFAULT_MODEL

LARGEST_ID = 2**31 - 1

_FIELDS = frozenset({"model", "prompt_ids", "prompt_token_ids", "sampling_params", "trajectory_id"})
_EMPTY_FIELDS = frozenset({"image_data", "video_data"})  # Claw-R1's clients may name them
SAMPLING = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "max_tokens",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)
_ALWAYS_TOLD = frozenset({"logprobs", "return_token_ids"})  # asking for them changes nothing


def read_generate_request(raw: bytes) -> ModelRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault."""
    body = read_json(raw)
    _check_fields(body)
    sampling = _read_sampling(body)
    named = sampling.pop("model", "")  # where Claw-R1's clients put it
    return ModelRequest(
        body=body,
        engine_body={"prompt": _read_prompt(body), "max_tokens": None, **sampling},  # without a limit: all that fits
        model=_read_text("model", body.get("model")) or _read_text("sampling_params.model", named) or DEFAULT_MODEL,
        is_streamed=False,
        wishes=Wishes(),
        n_choices=sampling.get("n", 1),
        chat_form={"messages": []},
        trajectory_id=_read_text("trajectory_id", body.get("trajectory_id")),
    )


def _check_fields(body: Json) -> None:
    if body.get("stream"):
        raise bad_request("`stream` is not supported: answers in tokens come whole.", param="stream")
    for name in _EMPTY_FIELDS & set(body):
        if body[name]:
            raise bad_request(f"`{name}` is not supported: prompts here are token ids only.", param=name)
    unknown = sorted(set(body) - _FIELDS - _EMPTY_FIELDS - {"stream"})
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise bad_request(f"Unknown field `{unknown[0]}`; there are {known}.", param=unknown[0])


def _read_prompt(body: Json) -> list[int]:
    names = [name for name in ("prompt_ids", "prompt_token_ids") if body.get(name) is not None]
    if len(names) != 1:
        raise wrong("prompt_ids", "is required" if not names else "and `prompt_token_ids` are the same: send one")
    ids = body[names[0]]
    if not isinstance(ids, list) or not ids or any(type(item) is not int for item in ids):
        raise wrong(names[0], "must be a list of at least one token id")
    if min(ids) < 0 or max(ids) > LARGEST_ID:
        raise wrong(names[0], f"must hold ids from 0 to {LARGEST_ID}")
    return ids


def _read_sampling(body: Json) -> Json:
    given = body.get("sampling_params")
    if given is not None and not isinstance(given, dict):
        raise wrong("sampling_params", "must be an object")
    sampling = {name: value for name, value in (given or {}).items() if name not in _ALWAYS_TOLD and value is not None}
    unknown = sorted(set(sampling) - SAMPLING - {"model"})
    if unknown:
        raise wrong(f"sampling_params.{unknown[0]}", f"is not supported; there are {', '.join(sorted(SAMPLING))}")
    n_choices = sampling.get("n", 1)
    if type(n_choices) is not int or not 1 <= n_choices <= MAX_CHOICES:
        raise wrong("sampling_params.n", f"must be an integer from 1 to {MAX_CHOICES}")
    return sampling


def _read_text(name: str, value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise wrong(name, "must be a string")
    return value or ""
