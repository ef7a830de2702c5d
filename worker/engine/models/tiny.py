"""A random Llama of two layers and its 512-token tokenizer: small enough for tests, real enough for vLLM and DeepSpeed.

    python -m worker.engine.models.tiny OUT

The same seed gives the same bytes everywhere, so that two processes can build it and compare.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from worker.engine.models.folder import build_once, save

VOCABULARY = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TOPICS = (
    "weather time price distance population language currency airport holiday railway museum harbour festival library"
)
_PLACES = (
    "Oslo Lima Paris Quito Accra Hanoi Turin Perth Dakar Sofia Bergen Kyoto Tampere Valencia Windhoek Marrakesh "
    "Edinburgh Bucharest Guadalajara Montevideo"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, so every text has tokens; trained on lines made here, so no data set is needed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_lines(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise RuntimeError(f"the training lines give {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",  # noqa: S106 - these are tokens of a vocabulary
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        clean_up_tokenization_spaces=False,
    )


def _training_lines() -> list[str]:
    places = _PLACES.split()
    calls = [
        "<tool_call>" + json.dumps({"name": f"get_{topic}", "arguments": {"city": place}}) + "</tool_call>"
        for topic in _TOPICS.split()
        for place in places
    ]
    questions = [f"What is the {topic} in {place}? It is {topic}." for topic in _TOPICS.split() for place in places]
    frame = ["system\n", "user\n", "assistant\n", "<tool_response>sunny</tool_response>", "# Tools\n<tools>\n</tools>"]
    return [*calls, *questions, *frame * 20]


def create_model(*, seed: int = 0) -> LlamaForCausalLM:
    """Two layers, hidden size 64, two heads of 32: the smallest head that vLLM's CPU attention has a kernel for."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        # Wide weights: with the usual 0.02 every next token would be almost equally likely.
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def build(folder: Path) -> None:
    """Write the model and its tokenizer into an existing folder."""
    save(create_model(), train_tokenizer(), folder=folder)


def main(arguments: list[str] | None = None) -> int:
    """Build once; say what was done."""
    parser = argparse.ArgumentParser(description="Write a tiny random model folder.")
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    built = build_once(options.out, build)
    sys.stdout.write(f"{'built' if built else 'already there:'} {options.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
