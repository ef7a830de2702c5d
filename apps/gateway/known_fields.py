"""Every field that a request may hold beside those its own dialect reads, and what becomes of it. Explicit tables.

A field in no table is refused by name: engines take any field and say nothing of those that they do not know, so one
that is misspelt, or meant for another server, would be lost in silence. Knows no dialect's own fields.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from apps.gateway.errors import bad_request

# Accepted because clients send them; they steer other people's servers, or parts of engines that no call here reaches.
IGNORED = frozenset(
    {
        "client_metadata",
        "length_penalty",  # read by beam search only
        "metadata",
        "mm_payload",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "return_mm_kwargs",
        "return_token_offsets",
        "routed_experts_prompt_start",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
        "verbosity",
    }
)

# How an answer is sampled and where it ends: OpenAI's names, then what vLLM understands beyond them. They go to the
# engine as they are, and it checks their values.
SAMPLING = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "max_tokens",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "top_p",
        # vLLM's
        "add_special_tokens",
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprob_token_ids",
        "min_p",
        "min_tokens",
        "priority",
        "repetition_detection",
        "repetition_penalty",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "stream_interval",
        "structured_outputs",
        "thinking_token_budget",
        "top_k",
        "truncate_prompt_tokens",
        "truncation_side",
        "vllm_xargs",
        "watermarking",
    }
)

# How messages become a prompt, where there are messages.
TEMPLATE = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "include_reasoning",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "reasoning_effort",
        "return_prompt_text",
    }
)

# Field → what to do instead. Silence would give another answer than the one asked for.
REFUSED = {
    "ec_transfer_params": "operators connect engines, callers do not",
    "kv_transfer_params": "operators connect engines, callers do not",
    "moderation": "this platform moderates nothing: have the agent ask a service that does",
    "use_beam_search": "the log-probs of a beam are not those of sampling",
}

_GUIDED = "Use `structured_outputs`."
# What other servers and earlier engines call it → what it is here.
_ADVICE = {
    "enable_thinking": 'Use `chat_template_kwargs`: {"enable_thinking": …}.',
    "extra_body": "What it holds belongs beside the other fields: it is a parameter of OpenAI's package.",
    "guided_choice": _GUIDED,
    "guided_grammar": _GUIDED,
    "guided_json": _GUIDED,
    "guided_regex": _GUIDED,
    "reasoning": "Use `reasoning_effort`.",
    "thinking": "Use `reasoning_effort`, or what the model's template knows in `chat_template_kwargs`.",
}
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_new_tokens")  # dialects differ
LONGEST_NAME = 100  # letters of a client's own name for a field that it is told


def refuse_unknown(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ApiError (400) for the first field that is not known; one that is null says nothing."""
    if body.keys() <= known:
        return
    for name, value in body.items():
        if value is not None and name not in known:
            shown = name[:LONGEST_NAME]
            raise bad_request(
                f"Unknown field `{shown}`: neither OpenAI's API nor this platform has it.{_advise(shown, known)}",
                param=shown,
                code="unknown_parameter",
            )


def _advise(name: str, known: frozenset[str]) -> str:
    if name in _ADVICE:
        return f" {_ADVICE[name]}"
    found = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    if name in _LIMITS:
        found = [limit for limit in _LIMITS if limit in known]
    return f" Did you mean `{found[0]}`?" if found else ""


def keep_meaningful(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an engine is to read: not those that are null, or for other people's servers."""
    return {name: value for name, value in body.items() if value is not None and name not in IGNORED}
