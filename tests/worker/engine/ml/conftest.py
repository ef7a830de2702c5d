"""The tiny model's folder, built once."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from worker.engine.models.folder import build_once
from worker.engine.models.tiny import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert build_once(folder, build)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tiny)
    return loaded
