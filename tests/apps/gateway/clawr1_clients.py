"""Claw-R1's two kinds of clients, as its own ones speak: no key, its addresses, its fields and nothing else."""

import json
import re
from typing import Any

import httpx
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionToolParam

Json = dict[str, Any]
CHECK: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "check_answer",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
}
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


async def play_black_box(gateway_url: str, *, prompt_uid: str, channel: str, reward: float | None) -> str:
    """One episode of an agent that knows the openai package only, and of the flow around it; returns its uid."""
    async with httpx.AsyncClient(trust_env=False) as http:
        opened = (await http.post(f"{gateway_url}/init_trajectory")).raise_for_status().json()
        before, _, _ = opened["base_url"].rsplit("/", 2)  # …/trajectory/prompt/v1: the flow puts its own prompt in
        base_url = f"{before}/{prompt_uid}/v1"
        facts = {"channel": channel, "metadata": {"data_source": "gsm8k", "reward_model": {"ground_truth": "42"}}}
        (await http.post(f"{base_url}/register_trajectory", json=facts)).raise_for_status()
        await _solve(base_url)
        body = {"channel": channel} | ({} if reward is None else {"reward": reward})
        (await http.post(f"{base_url}/complete_trajectory", json=body)).raise_for_status()
    return str(opened["trajectory_uid"])


async def _solve(base_url: str, *, max_turns: int = 3) -> None:
    """Ask, parse calls out of the text, answer them without their ids, and stop at the first answer without one."""
    client = AsyncOpenAI(base_url=base_url, api_key="not-needed", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "How much is 17 + 25?"}]
    for _ in range(max_turns):
        answer = await client.chat.completions.create(model="default", messages=messages, tools=[CHECK])
        text = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": text})
        calls = [json.loads(call) for call in _CALL.findall(text)]
        if not calls:
            break
        messages += [{"role": "tool", "content": "Noted."} for call in calls if call["name"] == "check_answer"]
    await client.close()


def play_white_box(
    gateway_url: str, *, uid: str, prompt_uid: str, n_turns: int = 2, reward: float | None = 1.0, channel: str = ""
) -> list[Json]:
    """One episode of a flow that works in tokens and submits each turn; returns what it submitted."""
    sampling = {"temperature": 0.8, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": True}
    prompt, steps = [5, 6, 7], []
    query = f"?channel={channel}" if channel else ""
    with httpx.Client(base_url=gateway_url, trust_env=False) as http:
        for turn in range(n_turns):
            body = {"prompt_ids": prompt, "sampling_params": sampling}
            said = http.post("/generate", json=body).raise_for_status().json()
            is_last = turn == n_turns - 1
            step = {
                "prompt_ids": prompt,
                "response_ids": said["token_ids"],
                "reward": reward if is_last else None,
                "rollout_log_probs": said["log_probs"],
                "trajectory_uid": uid,
                "prompt_uid": prompt_uid,
                "step_index": turn,
                "policy_version": 0,
                "is_last": is_last,
                "metadata": {"uid": prompt_uid},
            }
            answer = http.post(f"/submit_steps{query}", json={"steps": [step]}).raise_for_status().json()
            assert answer == {"accepted": 1}
            steps.append(step)
            prompt = [*prompt, *said["token_ids"], 50 + turn]
    return steps
