"""Adapters on disk: PEFT reads them back exactly, the checksum notices any change, nothing machine-bound is in them."""

import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import AdapterFiles
from tests.worker.trainer.samples import even_weights, make_job, make_samples
from worker.trainer.adapters import save_adapter
from worker.trainer.failures import describe_error
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import Policy, load_policy
from worker.trainer.ranks import Ranks


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


def save(policy: Policy, run_dir: Path, ranks: Ranks) -> AdapterFiles:
    files = save_adapter(policy, run_dir=run_dir, step=1, zero_stage=0, ranks=ranks)
    assert files is not None
    return files


def test_what_is_read_back_speaks_alike(policy: Policy, model_dir: Path, tmp_path: Path, ranks: Ranks) -> None:
    files = save(policy, tmp_path, ranks)
    again = load_policy(make_job(model_dir, initial_adapter_dir=files.path))
    samples = make_samples(3, seed=0)
    micro = build_micro_batch(samples, weights=even_weights(samples))
    question = {"trie": micro.trie, "targets": micro.targets}
    with torch.no_grad():
        assert torch.equal(policy(**question)[0], again(**question)[0])


def test_only_lora_is_written_and_only_two_files(policy: Policy, tmp_path: Path, ranks: Ranks) -> None:
    folder = Path(save(policy, tmp_path, ranks).path)
    assert [path.name for path in sorted(folder.iterdir())] == ["adapter_config.json", "adapter_model.safetensors"]
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))


def test_the_checksum_is_that_of_the_folder_and_notices_a_change(policy: Policy, tmp_path: Path, ranks: Ranks) -> None:
    files = save(policy, tmp_path, ranks)
    assert hash_folder(Path(files.path)) == files.sha256
    (Path(files.path) / "adapter_config.json").write_text("{}")
    assert hash_folder(Path(files.path)) != files.sha256


def test_the_same_weights_have_the_same_checksum_wherever_the_model_lies(
    policy: Policy, model_dir: Path, tmp_path: Path, ranks: Ranks
) -> None:
    first = save(policy, tmp_path / "a", ranks)
    assert str(model_dir) not in (Path(first.path) / "adapter_config.json").read_text()
    assert save(policy, tmp_path / "b", ranks).sha256 == first.sha256


def test_a_disk_that_fills_up_is_told_and_nothing_is_left_of_what_was_begun(
    policy: Policy, tmp_path: Path, ranks: Ranks
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(Exception, match=r"\(os error 27\)") as caught:
            save(policy, tmp_path, ranks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert describe_error(caught.value).startswith("The disk is full: make room")
    assert list((tmp_path / "adapters").iterdir()) == []
