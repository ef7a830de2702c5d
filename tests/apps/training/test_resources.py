"""How a run is run: settings that would be ignored or cannot be combined are refused by name; host files are read."""

from pathlib import Path
from typing import Any

import pytest

from apps.core.errors import InvalidInput
from apps.training.hosts import check_hosts, read_hostfile
from apps.training.recipes import read_recipe


def test_an_adapter_has_the_usual_size_unless_chosen() -> None:
    recipe = read_recipe({"lora_alpha": 64})
    assert (recipe.tuning, recipe.lora_rank, recipe.lora_alpha) == ("lora", 8, 64)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"lora_rank": 4}, "lora_rank must be one of"),
        ({"offload": "optimizer"}, "offload optimizer needs zero_stage 1 or more, not 0"),
        ({"offload": "parameters", "zero_stage": 2}, "offload parameters needs zero_stage 3 or more"),
        ({"tuning": "qlora", "zero_stage": 3}, "up to 2 with qlora"),
        ({"keep_checkpoints": 0}, "recipe.keep_checkpoints"),
        ({"keep_best": "luck"}, "recipe.keep_best"),
        ({"n_hosts": 0}, "recipe.n_hosts"),
        ({"algorithm": "sft", "keep_best": "reward_mean"}, "has no effect without rewards"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_recipe(chosen)


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("# ours\none slots=4\ntwo slots=4  # new\n\nthree slots=2\n")
    return path


def test_a_host_file_is_read_as_deepspeed_does(hostfile: Path) -> None:
    assert [(host.name, host.n_slots) for host in read_hostfile(hostfile)] == [("one", 4), ("two", 4), ("three", 2)]


def test_one_host_needs_no_file() -> None:
    check_hosts(None, n_hosts=1, n_processes=8)


def test_enough_hosts_with_enough_slots_pass(hostfile: Path) -> None:
    check_hosts(hostfile, n_hosts=2, n_processes=4)


@pytest.mark.parametrize(
    ("text", "n_hosts", "words"),
    [
        (None, 2, "name DeepSpeed's in CLAW_TRAIN_HOSTFILE"),
        ("", 2, "has 0 hosts with 4 slots or more, not 2"),
        ("one slots=4\ntwo slots=2\n", 2, "has 1 hosts with 4 slots or more"),
        ("one\n", 2, "is not of the form"),
        ("one slots=many\n", 2, "is not of the form"),
    ],
)
def test_too_few_hosts_are_refused_in_words(tmp_path: Path, text: str | None, n_hosts: int, words: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text or "")
    with pytest.raises(InvalidInput, match=words):
        check_hosts(path if text is not None else None, n_hosts=n_hosts, n_processes=4)


def test_a_host_file_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_hostfile(tmp_path / "none")
