"""What a train worker's host says of itself."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from apps.training.models import TrainHost
from worker.tasks import hardware

GIB = 2**30


@pytest.fixture
def gpu_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of NVIDIA's, on a host that has its driver."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '143771\\n81559\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(hardware, "detect_device", lambda: "cuda")
    return program


@pytest.mark.django_db
def test_a_host_with_gpus_tells_of_the_smallest(gpu_tool: Path) -> None:
    hardware.report_this_host()
    host = TrainHost.objects.get()
    assert (host.device, host.device_memory) == ("cuda", 81559 * 2**20)
    assert host.memory > GIB
    hardware.report_this_host()
    assert TrainHost.objects.count() == 1


@pytest.mark.django_db
def test_a_host_without_one_has_its_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect_device", lambda: "cpu")
    hardware.report_this_host()
    assert TrainHost.objects.get().device_memory is None


def test_a_tool_that_fails_leaves_it_open(gpu_tool: Path) -> None:
    gpu_tool.write_text("#!/bin/sh\nexit 9\n")
    assert hardware.read_gpu_memory() is None
    gpu_tool.write_text("#!/bin/sh\necho none\n")
    assert hardware.read_gpu_memory() is None


@pytest.mark.parametrize(("text", "limit"), [(str(GIB), GIB), ("max", None), (str(2**62), None)])
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None
) -> None:
    (tmp_path / "memory.max").write_text(text + "\n")
    monkeypatch.setattr(hardware, "CGROUP_LIMITS", (tmp_path / "none", tmp_path / "memory.max"))
    assert hardware.read_memory() == (limit or psutil.virtual_memory().total)


@pytest.mark.django_db
@pytest.mark.parametrize(("queue", "n_told"), [("train", 1), ("cpu", 0)])
def test_only_workers_of_the_train_queue_tell(queue: str, n_told: int) -> None:
    queues = SimpleNamespace(consume_from={queue: None})
    hardware.note_ready(SimpleNamespace(app=SimpleNamespace(amqp=SimpleNamespace(queues=queues))))
    assert TrainHost.objects.count() == n_told
