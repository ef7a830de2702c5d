"""Takes chat completions apart, and counts what of the answer was thought. Knows no Responses."""

from apps.gateway.capture import AnswerCapture
from apps.gateway.dialect import Json
from apps.gateway.responses.logprobs import count_tokens_through


class ResponsesCapture(AnswerCapture):
    """`n_thought`: tokens up to the end of the reasoning. vLLM does not tell it in a chat completion's usage."""

    n_thought = 0

    def take_chunk(self, chunk: Json) -> bool:
        is_worth_sending = super().take_chunk(chunk)
        for choice in chunk.get("choices") or []:
            if (choice.get("delta") or {}).get("reasoning_content"):
                self.n_thought = len(self.choices[0].token_ids)
        return is_worth_sending

    def take_whole(self, answer: Json) -> None:
        for choice in answer.get("choices") or []:
            message = choice.get("message") or {}
            thought = message.get("reasoning") or message.get("reasoning_content") or ""
            self.n_thought = count_tokens_through((choice.get("logprobs") or {}).get("content") or [], thought)
        super().take_whole(answer)
