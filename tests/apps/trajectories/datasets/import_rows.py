"""Rows of every format that an import reads, each as it should be."""

import json
from typing import Any

from tests.factories.trajectories import TOOL

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Where is my parcel?"},
        {"role": "assistant", "content": "Which one?"},
        {"role": "user", "content": "The red one."},
        {"role": "assistant", "content": "On its way."},
    ],
    "tools": [TOOL],
    "reward": 0.5,
    "source": "helpdesk",
}
SHAREGPT: dict[str, Any] = {
    "id": "s1",
    "system": "Be short.",
    "conversations": [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "sky"}}'},
        {"from": "observation", "value": "blue"},
        {"from": "gpt", "value": "Fine."},
    ],
    "tools": '[{"name": "look", "parameters": {}}]',
}
TOKENS = {
    "format": "claw.tokens.v1",
    "trajectory": "t1",
    "n_rows": 1,
    "index": 0,
    "prompt_ids": [1, 2],
    "completion_ids": [3, 4],
    "logprobs": [-0.5, -0.25],
    "is_exact": True,
}
MESSAGES: dict[str, Any] = {
    "format": "claw.messages.v1",
    "trajectory": "t2",
    "n_rows": 1,
    "messages": CHAT["messages"][1:3],
    "tools": [TOOL],
    "turns": [{"index": 0, "at": 1}],
}


NESTED = "[" * 300 + "]" * 300
USER = CHAT["messages"][1]
HUMAN = SHAREGPT["conversations"][0]


def spell_chat(member: str) -> bytes:
    """Return a conversation in which the user's message has a member that is spelled so."""
    messages = f'[{{"role": "user", "content": "Hello", {member}}}, {json.dumps(CHAT["messages"][2])}]'
    return f'{{"messages": {messages}}}'.encode()


def claw_r1(step: int | None, *, uid: str = "u1", **more: Any) -> dict[str, Any]:
    row = {
        "prompt_ids": [1, 2, *[9] * (step or 0)],
        "response_ids": [9],
        "rollout_log_probs": [-0.5],
        "trajectory_uid": uid,
        "prompt_uid": "p7",
        "step_index": step,
        "policy_version": 3,
        "is_last": step == 1,
        "reward": None,
        "metadata": {"turn": step},
    }
    return {**row, **more}


def bad(line: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the row with something else in it."""
    return {**line, **changes}
