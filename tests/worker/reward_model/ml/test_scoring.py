"""A tiny random reward model: what it scores, how a conversation becomes tokens, and what it will not load."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from worker.engine.models.tiny import VOCABULARY, train_tokenizer
from worker.reward_model import __main__ as command
from worker.reward_model.scoring import RewardModel

TALK = [{"role": "user", "content": "What is the weather in Oslo?"}, {"role": "assistant", "content": "Rain."}]


def build(folder: Path, *, n_labels: int, safe: bool = True) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_labels=n_labels,
        pad_token_id=0,
    )
    model = LlamaForSequenceClassification(config)
    model.save_pretrained(folder)
    if not safe:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    train_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("reward"), n_labels=1)


def test_the_score_is_the_logit(folder: Path) -> None:
    model = RewardModel(folder, max_tokens=64)
    ids = model.encode(TALK)
    with torch.inference_mode():
        logit = model.model(input_ids=torch.tensor([ids])).logits[0, 0]
    assert model.answer(TALK) == {"score": pytest.approx(float(logit))}
    assert model.answer(TALK[:1]) != model.answer(TALK)


def test_of_several_labels_it_is_the_last_ones_log_odds(tmp_path: Path) -> None:
    model = RewardModel(build(tmp_path, n_labels=3), max_tokens=64)
    ids = model.encode(TALK)
    with torch.inference_mode():
        last = torch.softmax(model.model(input_ids=torch.tensor([ids])).logits[0], dim=0)[-1]
    assert model.score(ids) == pytest.approx(math.log(last / (1 - last)), abs=1e-5)


def test_the_end_of_a_long_conversation_counts(folder: Path) -> None:
    whole, short = RewardModel(folder, max_tokens=64).encode(TALK), RewardModel(folder, max_tokens=16).encode(TALK)
    assert short == whole[-16:]


def test_what_cannot_be_rendered_is_told(folder: Path) -> None:
    assert "cannot be rendered" in RewardModel(folder, max_tokens=64).answer([{}])["error"]


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="safetensors"):
        RewardModel(build(tmp_path, n_labels=1, safe=False), max_tokens=64)


def test_lines_in_lines_out(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--model", str(folder)])
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"messages": TALK}) + "\n\n"))
    assert command.main() == 0
    [line] = capsys.readouterr().out.splitlines()
    assert set(json.loads(line)) == {"score"}
