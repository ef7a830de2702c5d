"""The fake engine as a process of its own, to be killed: every answer is new, and its words spell its tokens.

`w1234 ` is token 1234, so whoever holds the text knows the ids, and the log-probs, that were sampled. A request's
`max_tokens` is the number of words that it gets. A conversation's prompt begins with the prompt and the answer of the
turn before, as with a real chat template.

    python -m tests.fakes.word_engine --port 8123 --pause 0.002
"""

import argparse
import secrets
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.fakes.engine import END_TOKEN, EngineCall, FakeEngine, Sampled

Json = dict[str, Any]
FIRST_WORD = 1000
N_WORDS_DEFAULT = 8
_KEPT_CALLS = 5000
_KEPT_FIELDS = ("model", "stream_options", "return_token_ids", "logprobs")


class WordEngine(FakeEngine):
    """`GET /calls` tells what became of the latest calls."""

    def further_routes(self) -> list[web.RouteDef]:
        return [web.get("/calls", self._tell_calls)]

    async def _tell_calls(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                call.choices[0].pieces[0].strip(): {"is_cancelled": call.is_cancelled, "n_chunks": call.n_chunks_sent}
                for call in self.calls
            }
        )

    def _sample(self, body: Json, headers: dict[str, str]) -> EngineCall:
        n_words = body.get("max_tokens") or body.get("max_completion_tokens") or N_WORDS_DEFAULT
        ids = [FIRST_WORD + secrets.randbelow(2**31 - FIRST_WORD) for _ in range(n_words)]
        pieces = [*(spell_word(number) for number in ids), "<|im_end|>"]
        choice = Sampled(pieces=pieces, token_ids=[*ids, END_TOKEN], logprobs=logprobs_of([*ids, END_TOKEN]))
        del self.calls[:-_KEPT_CALLS]
        return EngineCall(
            body={name: body[name] for name in _KEPT_FIELDS if name in body},
            headers={},
            prompt_token_ids=spell_prompt(body["messages"]),
            choices=[choice],
        )

    def _whole(self, call: EngineCall) -> Json:
        answer = super()._whole(call)
        answer["choices"][0]["message"]["content"] = "".join(call.choices[0].pieces[:-1])
        return answer

    def _deltas(self, call: EngineCall) -> list[Json]:
        return [*({"content": piece} for piece in call.choices[0].pieces[:-1]), {}]


def spell_word(token_id: int) -> str:
    return f"w{token_id} "


def read_ids(text: str) -> list[int]:
    """Return the token ids of an answer's text, without the one that ends it."""
    return [int(word[1:]) for word in text.split()]


def logprobs_of(token_ids: Sequence[int]) -> list[float]:
    """Return the tokens' log-probs, exact in 32 bits."""
    return [-(token_id % 1000) / 256 for token_id in token_ids]


def spell_prompt(messages: Sequence[Json]) -> list[int]:
    """Return the prompt's ids: each message is its role, its words and an end, and then it is the assistant's turn."""
    ids: list[int] = []
    for message in messages:
        ids += [_number(message["role"]), *map(_number, _text_of(message["content"]).split()), END_TOKEN]
    return [*ids, _number("assistant")]


def _text_of(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def _number(word: str) -> int:
    return int(word[1:]) if word[1:].isdigit() else zlib.crc32(word.encode()) & 0x7FFFFFFF


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each chunk")
    options = parser.parse_args()
    engine = WordEngine()
    engine.port = options.port
    engine.script.pause_s = options.pause
    engine.script.max_prompt_chars = 1_000_000
    with engine:
        threading.Event().wait()


if __name__ == "__main__":
    main()
