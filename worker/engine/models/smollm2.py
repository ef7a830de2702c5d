"""SmolLM2-135M-Instruct from its Python package (GGUF) to a folder that vLLM serves and the trainer trains.

    python -m worker.engine.models.smollm2 OUT --gguf FILE

The package stores quantised weights; they are unpacked to bf16, which is what is served and trained from. It knows
nothing of downloading: set-up fetches the package.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from worker.engine.models.folder import build_once, save


def convert(gguf: Path, *, folder: Path) -> None:
    """Read the weights and the tokenizer out of one GGUF file and save them into `folder`."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    save(model, tokenizer, folder=folder)


def main(arguments: list[str] | None = None) -> int:
    """Convert once; say what was done."""
    parser = argparse.ArgumentParser(description="Convert SmolLM2 from GGUF into a model folder.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    options = parser.parse_args(arguments)
    if not options.gguf.is_file():
        parser.error(f"no such GGUF file: {options.gguf}")
    built = build_once(options.out, lambda folder: convert(options.gguf, folder=folder))
    sys.stdout.write(f"{'converted into' if built else 'already there:'} {options.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
