"""Which parameters bend the sampling."""

from typing import Any

import pytest

from apps.trajectories.constraints import find_constraints

STRICT = {"type": "function", "function": {"name": "look", "strict": True}}
FREE = {"type": "function", "function": {"name": "look", "strict": False}}


@pytest.mark.parametrize(
    ("sampling", "tools"),
    [
        ({}, []),
        ({"temperature": 0.7, "seed": 1, "max_tokens": 20, "stop": ["x"], "logprobs": True}, []),
        ({"presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": None, "logit_bias": {}}, []),
        ({"response_format": {"type": "text"}, "tool_choice": "auto"}, [FREE]),
        ({"tool_choice": "none", "parallel_tool_calls": False}, [STRICT]),
        ({"parallel_tool_calls": False}, []),
        ({"parallel_tool_calls": True}, [FREE]),
        ({"response_format": "nonsense"}, ["nonsense"]),
    ],
)
def test_what_leaves_the_distribution_alone_is_no_constraint(sampling: dict[str, Any], tools: list[Any]) -> None:
    assert find_constraints(sampling, tools) == []


@pytest.mark.parametrize(
    ("sampling", "tools", "name"),
    [
        ({"response_format": {"type": "json_schema"}}, [], "response_format"),
        ({"response_format": {"type": "json_object"}}, [], "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, [], "structured_outputs"),
        ({"tool_choice": "required"}, [FREE], "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, [FREE], "tool_choice"),
        ({}, [FREE, STRICT], "tools.strict"),
        ({"parallel_tool_calls": False, "tool_choice": "auto"}, [FREE], "parallel_tool_calls"),
        ({"parallel_tool_calls": False}, [FREE], "parallel_tool_calls"),
        ({"logit_bias": {"5": 10}}, [], "logit_bias"),
        ({"frequency_penalty": 0.5}, [], "frequency_penalty"),
        ({"repetition_penalty": 1.1}, [], "repetition_penalty"),
        ({"min_p": 0.05}, [], "min_p"),
        ({"min_tokens": 5}, [], "min_tokens"),
        ({"bad_words": ["x"]}, [], "bad_words"),
        ({"thinking_token_budget": 100}, [], "thinking_token_budget"),
        ({"watermarking": True}, [], "watermarking"),
    ],
)
def test_what_bends_it_is_named(sampling: dict[str, Any], tools: list[Any], name: str) -> None:
    assert find_constraints(sampling, tools) == [name]
