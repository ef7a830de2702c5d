"""Says what a train worker's host has, when it starts and before each run. Knows Linux and NVIDIA's tool, no rows."""

import shutil
import socket
import subprocess
from pathlib import Path

import psutil
import structlog
from celery import Celery
from celery.signals import worker_ready

from apps.core.contracts.tasks import QUEUE_TRAIN
from apps.training.room import report_host
from worker.engine.launch import detect_device

log = structlog.get_logger(__name__)

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
ASK_S = 10


@worker_ready.connect
def note_ready(sender: object, **_: object) -> None:
    """Called by Celery in every worker; only those of the train queue have a host to tell of."""
    app: Celery = sender.app  # type: ignore[attr-defined]  # the consumer's
    if QUEUE_TRAIN in app.amqp.queues.consume_from:
        report_this_host()


def report_this_host() -> None:
    """Write down what this host has."""
    device = detect_device()
    report_host(
        socket.gethostname(),
        device=device,
        device_memory=read_gpu_memory() if device == "cuda" else None,
        memory=read_memory(),
    )


def read_memory() -> int:
    """Return the bytes that this host, or the container's limit, has."""
    total = int(psutil.virtual_memory().total)
    for path in CGROUP_LIMITS:
        if path.exists() and (text := path.read_text(encoding="ascii").strip()).isdigit():
            return min(total, int(text))
    return total


def read_gpu_memory() -> int | None:
    """Return the bytes of the smallest GPU, None where NVIDIA's tool does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    argv = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=ASK_S)
        return min(int(line) for line in answer.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("gpu.unread", error=str(error))
        return None
