"""A second agent that keeps calling while weights change under it. It counts what failed and who answered."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from openai import AsyncOpenAI, OpenAIError

QUESTIONS = ("Say hello.", "Name a colour.", "Count to three.", "What is your name?")
PAUSE_S = 2.0  # on two cores, an engine that is kept busy slows the trainer several times over
MAX_TOKENS = 6


@dataclass
class CompanionReport:
    """What the companion saw. `versions` counts the answers by the version that spoke."""

    response_ids: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def keep_calling(client: AsyncOpenAI, report: CompanionReport, *, stop: asyncio.Event) -> None:
    """Call with streaming on, one call after the other, until `stop` is set."""
    number = 0
    while not stop.is_set():
        question = QUESTIONS[number % len(QUESTIONS)]
        number += 1
        try:
            await _call_once(client, report, question=question)
        except OpenAIError as error:
            report.failures.append(str(error))
        await asyncio.sleep(PAUSE_S)


async def _call_once(client: AsyncOpenAI, report: CompanionReport, *, question: str) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="default", messages=[{"role": "user", "content": question}], max_tokens=MAX_TOKENS, stream=True
    )
    stream = raw.parse()
    response_id, is_finished = "", False
    async for chunk in stream:
        response_id = chunk.id
        is_finished = is_finished or any(choice.finish_reason for choice in chunk.choices)
    if not is_finished:
        report.failures.append(f"{response_id}: the stream ended without a finish_reason")
    report.response_ids.append(response_id)
    report.versions[raw.headers.get("x-claw-version", "?")] += 1
