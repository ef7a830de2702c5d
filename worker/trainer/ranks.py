"""What the ranks agree on: who they are, sums over all of them, and whether to stop.

Knows torch's process group; knows nothing of training.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.constants import default_pg_timeout
from torch import Tensor

from apps.core.contracts.training import STOP_FILE, beat_file
from worker.trainer.errors import StopRequested
from worker.trainer.files import SIGNAL_MARK

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
BEAT_EVERY_S = 1.0
LOOPBACK = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  Linux's, where shm_open puts its names


class Ranks:
    """This process among its equals. Every method but `is_main` and `beat` is called by all at one point."""

    def __init__(self, run_dir: Path, *, device: str) -> None:
        self.index = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(device, local) if device == "cuda" else torch.device(device)
        self._stop_paths = (run_dir / STOP_FILE, run_dir / SIGNAL_MARK)
        self._beat_path = run_dir / beat_file(self.index)
        self._beat_path.parent.mkdir(parents=True, exist_ok=True)
        self._beaten_at = float("-inf")
        self._parent = os.getppid()
        self._is_signalled = False
        signal.signal(signal.SIGTERM, self._note_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher turns it into SIGTERM

    @property
    def is_main(self) -> bool:
        """Return whether this rank writes what all share."""
        return self.index == 0

    def raise_if_stopped(self) -> None:
        """Raise StopRequested on every rank as soon as one has been told to stop."""
        self.beat()
        is_orphan = os.getppid() != self._parent
        is_told = self.is_main and any(path.exists() for path in self._stop_paths)
        wants_stop = self._is_signalled or is_orphan or is_told
        if self.largest(float(wants_stop)) > 0:
            raise StopRequested

    def beat(self) -> None:
        """Show whoever supervises the run that this rank is at work. Cheap: call it as often as there is progress."""
        now = time.monotonic()
        if now - self._beaten_at >= BEAT_EVERY_S:
            self._beaten_at = now
            self._beat_path.touch()

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        if self.count > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the element-wise sum of the ranks' tensors."""
        if self.count > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def share_text(self, text: str | None) -> str | None:
        """Return rank 0's `text` on every rank."""
        box = [text]
        if self.count > 1:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.largest(0.0)

    def _note_signal(self, _signal: int, _frame: object) -> None:
        self._is_signalled = True


def drop_shared_name(rank: int) -> None:
    """Take away the name of the memory by which DeepSpeed's ranks on one CPU host reach this one.

    DeepSpeed makes 66 MB for each rank (ops/csrc/cpu/comm/shm.cpp) and never removes them. Once all ranks have them
    open nobody needs the names any more, and memory without a name goes with its processes, however they end.
    """
    meeting = f"{os.environ.get('MASTER_ADDR', '')}_{os.environ.get('MASTER_PORT', '')}"
    (SHARED_MEMORY / f"deepspeed_allreduce_buffer_{os.getuid()}_{meeting}_{rank}").unlink(missing_ok=True)


def meet_on_this_host(ranks: Ranks) -> None:
    """Start the process group of ranks that are all on one host, where nobody outside it can reach them.

    By itself torch's store listens on every interface, and so may gloo and NCCL. Rank 0 gives the store a socket that
    is bound to the loopback address already.
    """
    name = find_loopback()
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, name)
    port = int(os.environ["MASTER_PORT"])
    listening = socket.create_server((LOOPBACK, port)).detach() if ranks.is_main else None  # the store closes it
    store = dist.TCPStore(LOOPBACK, port, ranks.count, is_master=ranks.is_main, master_listen_fd=listening)
    dist.init_process_group(
        BACKENDS[ranks.device.type],
        store=store,
        rank=ranks.index,
        world_size=ranks.count,
        timeout=default_pg_timeout,
        device_id=ranks.device if ranks.device.type == "cuda" and ranks.count > 1 else None,  # as DeepSpeed has it
    )


def find_loopback() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on others."""
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names else "lo0"


@contextmanager
def process_group(run_dir: Path, *, device: str) -> Iterator[Ranks]:
    """Join the ranks' process group and leave it again."""
    ranks = Ranks(run_dir, device=device)
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if ranks.count == int(os.environ.get("LOCAL_SIZE", "0")):  # the launcher's word for how many are on this host
        meet_on_this_host(ranks)
    deepspeed.init_distributed(dist_backend=BACKENDS[device], verbose=False)
    ranks.barrier()
    drop_shared_name(ranks.index)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()
