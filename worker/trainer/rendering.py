"""Answers as tokens: what was said, through the chat template that the engines speak with.

Knows a tokenizer; knows nothing of models or losses. An answer ends with the token that ends a turn, and with nothing
behind it: what follows there a policy never samples.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from apps.core.contracts.labelled import Answer, Conversation, Judged
from apps.core.contracts.training import Probe, TokenText, TrainBatch, TrainSample
from worker.engine.models.chat_template_path import CHAT_TEMPLATE
from worker.trainer.errors import BatchError, TrainerError

PROBE_TOKENS = 256


class Renderer:
    """Renders for one model; its tokenizer is loaded when it is first needed."""

    def __init__(self, model_dir: Path | str) -> None:
        self._model_dir = str(model_dir)

    def check_tokenizer(self, texts: Sequence[TokenText]) -> None:
        """Raise TrainerError when the engines' tokens are not this model's: what they sampled would mean other words.

        Most must differ, as they do between tokenizers: engines may put single odd ones in words of their own.
        """
        ours = {token.token_id: str(self._tokenizer.decode([token.token_id])) for token in texts}
        others = [token for token in texts if ours[token.token_id] != token.text]
        if len(others) > len(texts) / 2:
            first = others[0]
            raise TrainerError(
                f"{len(others)} of {len(texts)} tokens mean something else to the engine: {first.token_id} is "
                f"{first.text!r} there and {ours[first.token_id]!r} in {self._model_dir}. Another tokenizer: "
                "have engines and trainer read the same one."
            )

    def render_batch(self, batch: TrainBatch) -> TrainBatch:
        """Return the batch with tokens for every answer and for the probe. Raises BatchError that names the answer."""
        judged = tuple(self._render_judged(each) for each in batch.judged)
        samples = tuple(self._render_hint(sample) for sample in batch.samples)
        probe = batch.probe
        if judged and not probe.token_ids:
            probe = choose_probe(judged)
        return dataclasses.replace(batch, samples=samples, judged=judged, probe=probe)

    def _render_hint(self, sample: TrainSample) -> TrainSample:
        if sample.hint is None:
            return sample
        asked = self.render(Answer(answer_id=sample.step_id, conversation=sample.hint))
        return dataclasses.replace(sample, hinted_ids=asked.prompt_ids)

    def _render_judged(self, judged: Judged) -> Judged:
        return dataclasses.replace(judged, answers=tuple(map(self.render, judged.answers)))

    def render(self, answer: Answer) -> Answer:
        """Return the answer in tokens. A prompt that has its own keeps them."""
        if answer.conversation is None:
            return answer
        try:
            prompt, completion = self._split(answer.conversation)
        except Exception as error:  # a template raises whatever its author chose
            raise BatchError(f"Answer {answer.answer_id} cannot be rendered by the chat template: {error}") from error
        return Answer(
            answer_id=answer.answer_id,
            prompt_ids=answer.prompt_ids or self._encode(prompt),
            completion_ids=self._end_turn(self._encode(completion)),
        )

    def _split(self, said: Conversation) -> tuple[str, str]:
        """Return the prompt's text and the answer's."""
        messages, answer = json.loads(said.messages), json.loads(said.answer)
        tools = json.loads(said.tools) or None
        prompt = self._fill_template(messages, tools=tools, add_generation_prompt=True)
        whole = self._fill_template([*messages, answer], tools=tools, add_generation_prompt=False)
        if not whole.startswith(prompt):
            raise ValueError("it renders the answer elsewhere than behind its prompt")
        return prompt, whole[len(prompt) :]

    def _fill_template(self, messages: list[Any], **options: Any) -> str:
        return str(
            self._tokenizer.apply_chat_template(messages, chat_template=self._template, tokenize=False, **options)
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _end_turn(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Cut what the template writes behind the token that ends the turn."""
        end = self._tokenizer.eos_token_id
        return ids[: ids.index(end) + 1] if end in ids else ids

    @cached_property
    def _template(self) -> str:
        return CHAT_TEMPLATE.read_text(encoding="utf-8")

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return AutoTokenizer.from_pretrained(self._model_dir, local_files_only=True)
        except (OSError, ValueError) as error:
            raise TrainerError(
                f"The tokenizer in {self._model_dir} cannot be loaded: {error}. What comes as text needs it."
            ) from error


def choose_probe(judged: tuple[Judged, ...]) -> Probe:
    """Return real tokens on which trainer and engine must agree afterwards: the shortest answer's, cut."""
    whole = (answer.prompt_ids + answer.completion_ids for each in judged for answer in each.answers)
    return Probe(token_ids=min(whole, key=len)[:PROBE_TOKENS])
