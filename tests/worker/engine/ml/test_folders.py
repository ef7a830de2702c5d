"""Model folders: whole, repeatable, untied."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from worker.engine.models.folder import build_once, untie
from worker.engine.models.tiny import VOCABULARY, build


def test_the_same_seed_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    build_once(tmp_path / "again", build)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tiny / name).read_bytes()


def test_what_is_there_is_not_built_again(tiny: Path) -> None:
    assert not build_once(tiny, build)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def build_half(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "model", build_half)
    assert list(tmp_path.iterdir()) == []


def test_every_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "Tromsø 🌧 <tool_call>\n\t{}"
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_turns_end_in_the_token_that_ends_generation(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("hi<|im_end|>", add_special_tokens=False)
    assert ids[-1] == tokenizer.eos_token_id


def test_the_served_weights_are_untied(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert not model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_untying_changes_no_answer() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.arange(8)[None]  # (B, T)
    before = model(ids).logits
    untie(model)
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    torch.testing.assert_close(model(ids).logits, before)
