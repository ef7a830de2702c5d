"""Writing a model folder: all of it or nothing, with untied embeddings and the house's chat template.

Knows how a folder must look to be served and refreshed; does not know where weights come from.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from worker.engine.models.chat_template_path import CHAT_TEMPLATE


def is_complete(folder: Path) -> bool:
    """Folders appear by one rename, so a folder that has its configuration has everything."""
    return (folder / "config.json").is_file()


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a scratch folder beside `target`; it takes the name `target` only when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    scratch.chmod(0o755)
    try:
        yield scratch
        _take_name(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take_name(scratch: Path, target: Path) -> None:
    if target.exists() and not is_complete(target):
        shutil.rmtree(target)
    try:
        scratch.rename(target)
    except OSError:
        # Another process finished the same folder first: its copy is as good as ours.
        if not is_complete(target):
            raise


def untie(model: PreTrainedModel) -> None:
    """Give the output layer weights of its own.

    vLLM's `reload_weights` answers 200 and serves wrong logits when they are shared with the input embeddings.
    """
    output = model.get_output_embeddings()
    shared = model.get_input_embeddings().weight
    if output.weight.data_ptr() == shared.data_ptr():
        output.weight = torch.nn.Parameter(shared.detach().clone())
    model.config.tie_word_embeddings = False


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, folder: Path) -> None:
    """Write weights, configuration, tokenizer and chat template into an existing folder."""
    untie(model)
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # weights are written for their owner alone, and engines may run as another user


def build_once(target: Path, build: Callable[[Path], None]) -> bool:
    """Run `build` into `target` unless it is there already; True when this call built it."""
    if is_complete(target):
        return False
    with new_folder(target) as scratch:
        build(scratch)
        os.sync()
    return True
