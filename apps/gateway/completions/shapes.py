"""What a completion request may hold, and the chat form that the pool keeps of it.

Like chat: fields that we read, that go to the engine, that change nothing, that are refused by name.
"""

from typing import Any

from apps.gateway.bodies import read_json
from apps.gateway.capture import Wishes
from apps.gateway.checks import COMMON, Check, check_fields, is_token_ids, refuse_fields, wants_usage, wrong
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.errors import ApiError, bad_request
from apps.gateway.known_fields import IGNORED, SAMPLING, keep_meaningful, refuse_unknown
from apps.gateway.known_fields import REFUSED as REFUSED_ANYWHERE

MAX_LOGPROBS = 20  # what vLLM gives at most
MAX_ANSWERS = 256  # prompts times choices

READ = frozenset({"best_of", "logprobs", "model", "n", "prompt", "stream", "stream_options"})
# Field → what to do instead.
REFUSED = REFUSED_ANYWHERE | {
    "echo": "an answer is what the model says; the prompt you have",
    "prompt_embeds": "the pool keeps tokens, and these are none",
    "suffix": "this platform's models write on, they fill no gaps",
}
KNOWN = READ | SAMPLING | IGNORED | REFUSED.keys() | {"prompt_logprobs"}

_CHECKS: tuple[Check, ...] = (
    (
        "logprobs",
        lambda value: type(value) is int and 0 <= value <= MAX_LOGPROBS,
        f"an integer from 0 to {MAX_LOGPROBS}",
    ),
    *COMMON,
)


def read_completion_request(raw: bytes) -> ModelRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault."""
    body = read_json(raw)
    refuse_unknown(body, KNOWN)
    refuse_fields(body, REFUSED)
    check_fields(body, _CHECKS)
    _check_best_of(body)
    prompts = read_prompts(body.get("prompt"))
    n_choices = len(prompts) * (body.get("n") or 1)
    if n_choices > MAX_ANSWERS:
        raise _too_many()
    return ModelRequest(
        body=body,
        engine_body=_make_engine_body(body),
        model=body["model"],
        is_streamed=bool(body.get("stream")),
        n_choices=n_choices,
        wishes=Wishes(
            usage=wants_usage(body),
            logprobs=body.get("logprobs") is not None,
            token_ids=bool(body.get("return_token_ids")),
        ),
        chat_form={"messages": [_as_message(prompts)]},
        is_trainable=len(prompts) == 1,
    )


def read_prompts(prompt: Any) -> list[str | list[int]]:
    """Return the prompts, each a text or token ids; raises ApiError (400)."""
    if isinstance(prompt, str) or is_token_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise wrong("prompt", "must be a string, a list of token ids, or a list of either" if prompt else "is required")
    if len(prompt) > MAX_ANSWERS:
        raise _too_many()
    for index, one in enumerate(prompt):
        if not isinstance(one, str) and not is_token_ids(one):
            raise wrong(f"prompt[{index}]", "must be a string or a list of token ids")
        if isinstance(one, str) != isinstance(prompt[0], str):
            raise wrong(f"prompt[{index}]", "must be like the prompts before it: all texts, or all token ids")
    if "" in prompt:
        raise wrong("prompt", "must not be empty")
    return prompt


def _too_many() -> ApiError:
    return wrong("prompt", f"times `n` may ask for no more than {MAX_ANSWERS} answers")


def _check_best_of(body: Json) -> None:
    best_of = body.get("best_of")
    if best_of is not None and best_of != (body.get("n") or 1):
        advice = "ask for `n` answers and choose among them"
        raise bad_request(f"`best_of` is not supported: {advice}.", param="best_of", code="unsupported_parameter")


def _make_engine_body(body: Json) -> Json:
    """Return the fields for the engine. Log-probs of sampled tokens are asked for in any case: 0 means just them."""
    engine_body = {name: value for name, value in keep_meaningful(body).items() if name not in {*REFUSED, "best_of"}}
    return {"logprobs": 0, **engine_body}


def _as_message(prompts: list[str | list[int]]) -> Json:
    """Return the prompts as a user would have said them; token ids are told as numbers, nothing here can read them."""
    texts = [prompt if isinstance(prompt, str) else f"token ids: {', '.join(map(str, prompt))}" for prompt in prompts]
    if len(texts) == 1:
        return {"role": "user", "content": texts[0]}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}
