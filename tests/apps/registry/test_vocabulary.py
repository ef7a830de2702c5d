"""The number of token ids is what the base model's own configuration says, or unknown."""

import json
from pathlib import Path

import pytest

from apps.registry.models import Policy
from apps.registry.vocabulary import read_vocabulary_size


def policy_in(folder: Path) -> Policy:
    return Policy(base_model_dir=str(folder))


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 49152}, 49152),
        ({"text_config": {"vocab_size": 7}}, 7),
        ({"vocab_size": 0}, None),
        ({"vocab_size": "many"}, None),
        ([], None),
        ({}, None),
    ],
)
def test_it_reads_the_configuration(tmp_path: Path, config: object, size: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_vocabulary_size(policy_in(tmp_path)) == size


def test_a_folder_that_is_not_here_says_nothing(tmp_path: Path) -> None:
    assert read_vocabulary_size(policy_in(tmp_path / "none")) is None


def test_a_damaged_configuration_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert read_vocabulary_size(policy_in(tmp_path)) is None


def test_a_changed_configuration_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"vocab_size": 5}')
    assert read_vocabulary_size(policy_in(tmp_path)) == 5
    path.write_text('{"vocab_size": 6}')
    path.touch()
    assert read_vocabulary_size(policy_in(tmp_path)) == 6
