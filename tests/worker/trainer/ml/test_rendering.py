"""Answers that came as words: rendered as the engines render them, and ended where a policy ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.core.contracts.labelled import Answer, Conversation, Judged
from apps.core.contracts.training import Probe, TokenText, TrainBatch
from worker.engine.models.tiny import train_tokenizer
from worker.trainer.errors import BatchError, TrainerError
from worker.trainer.rendering import Renderer

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the time in Oslo?"}]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(tokenizer_dir: Path) -> Renderer:
    return Renderer(tokenizer_dir)


def said(answer: dict[str, Any], *, messages: list[dict[str, Any]] = ASKED, tools: list[Any] | None = None) -> Answer:
    conversation = Conversation(
        messages=json.dumps(messages), tools=json.dumps(tools or []), answer=json.dumps({"role": "assistant", **answer})
    )
    return Answer(answer_id="step_1", conversation=conversation)


def words_of(ids: tuple[int, ...]) -> str:
    return str(train_tokenizer().decode(ids))


def test_words_become_prompt_and_answer(renderer: Renderer) -> None:
    answer = renderer.render(said({"content": "Noon."}))
    assert answer.conversation is None
    assert words_of(answer.prompt_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the time in Oslo?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert words_of(answer.completion_ids) == "Noon.<|im_end|>"  # and no line break, which no policy samples


def test_tools_and_calls_are_rendered(renderer: Renderer) -> None:
    call = {"type": "function", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    answer = renderer.render(said({"content": None, "tool_calls": [call]}, tools=[tool]))
    assert '"name": "get_time"' in words_of(answer.prompt_ids)
    assert (
        words_of(answer.completion_ids)
        == '<tool_call>{"name": "get_time", "arguments": {"city": "Oslo"}}</tool_call><|im_end|>'
    )


def test_a_prompt_that_an_engine_saw_stays_as_it_was(renderer: Renderer) -> None:
    corrected = said({"content": "Noon."})
    answer = renderer.render(Answer(**{**vars(corrected), "prompt_ids": (7, 8, 9)}))
    assert answer.prompt_ids == (7, 8, 9)
    assert words_of(answer.completion_ids) == "Noon.<|im_end|>"


def test_tokens_stay_as_they_are(tmp_path: Path) -> None:
    answer = Answer(answer_id="step_1", prompt_ids=(1,), completion_ids=(2,))
    assert Renderer(tmp_path).render(answer) == answer


def test_a_batch_of_words_has_a_probe_of_its_own(renderer: Renderer) -> None:
    judged = Judged(trajectory_id="t", answers=(said({"content": "Noon."}),), is_good=True)
    batch = renderer.render_batch(TrainBatch(step=1, samples=(), judged=(judged,), probe=Probe(token_ids=())))
    (answer,) = batch.judged[0].answers
    assert batch.probe.token_ids == (answer.prompt_ids + answer.completion_ids)[:256]


def test_what_the_template_refuses_is_named(renderer: Renderer) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(BatchError, match=r"step_1 cannot be rendered.*reads text only"):
        renderer.render(said({"content": "A cat."}, messages=image))


def test_a_missing_tokenizer_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="tokenizer"):
        Renderer(tmp_path).render(said({"content": "Noon."}))


def token_texts(renderer: Renderer, *, shift: int) -> list[TokenText]:
    """What an engine says of tokens whose tokenizer numbers them so much further."""
    return [TokenText(token_id=token_id, text=words_of((token_id + shift,))) for token_id in range(20, 36)]


def test_an_engine_with_another_tokenizer_is_noticed(renderer: Renderer) -> None:
    renderer.check_tokenizer(())
    same = token_texts(renderer, shift=0)
    renderer.check_tokenizer([TokenText(token_id=3, text="odd"), *same])
    with pytest.raises(TrainerError, match="16 of 16 tokens mean something else to the engine: 20 is"):
        renderer.check_tokenizer(token_texts(renderer, shift=7))
