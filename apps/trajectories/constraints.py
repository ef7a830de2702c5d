"""What kept an answer from being sampled freely, so that its log-probs are not those of the policy.

A grammar, a bias or a penalty changes the distribution that the engine samples from, and the engine reports the changed
one. Trained on, such tokens would look unlikely to the policy that spoke them. Pure; reads the parameters as the engine
was asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NEUTRAL: Mapping[str, Any] = {  # other values of these change the distribution
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
    "structured_outputs": {},
    "thinking_token_budget": None,
    "watermarking": False,
}
FREE_FORMATS = (None, "text")
FREE_CHOICES = (None, "auto", "none")


def find_constraints(sampling: Mapping[str, Any], tools: Sequence[Any]) -> list[str]:
    """Return the names of the parameters that bent the sampling, [] for an answer that was sampled freely."""
    found = [name for name, neutral in NEUTRAL.items() if sampling.get(name) not in (None, neutral)]
    form = sampling.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in FREE_FORMATS:
        found.append("response_format")
    choice = sampling.get("tool_choice")
    if choice not in FREE_CHOICES:
        found.append("tool_choice")
    if choice != "none" and any(map(_is_strict, tools)):
        found.append("tools.strict")
    if choice != "none" and tools and sampling.get("parallel_tool_calls") is False:
        found.append("parallel_tool_calls")  # vLLM's grammar ends the answer after its first call
    return found


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return isinstance(function, Mapping) and function.get("strict") is True
