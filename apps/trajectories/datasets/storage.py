"""Where files of exports and imports lie, and how much room the disk has. The folder is shared by web and workers."""

import errno
import shutil
from pathlib import Path

from django.conf import settings

from apps.core.errors import ServiceError

RESERVE_BYTES = 256 * 1024**2  # the platform itself wants to go on writing


class DiskFull(ServiceError):
    """There is no room for what was asked."""

    status = 507
    code = "insufficient_storage"


def job_folder(job_id: str, *, kind: str) -> Path:
    """Return the folder of an export or import ("exports", "imports"), made when missing."""
    folder = Path(settings.CLAW.data_dir) / kind / job_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_folder(job_id: str, *, kind: str) -> None:
    """Remove what a job left. It may be gone already."""
    shutil.rmtree(Path(settings.CLAW.data_dir) / kind / job_id, ignore_errors=True)


def list_folders(kind: str) -> list[str]:
    """Return the ids of the jobs that have a folder."""
    parent = Path(settings.CLAW.data_dir) / kind
    return sorted(folder.name for folder in parent.iterdir()) if parent.is_dir() else []


def check_room(n_bytes: int, *, what: str) -> None:
    """Raise DiskFull when the disk has not `n_bytes` and the reserve."""
    free = shutil.disk_usage(settings.CLAW.data_dir).free
    if free < n_bytes + RESERVE_BYTES:
        raise DiskFull(
            f"{what} needs about {_megabytes(n_bytes)} MB and the disk has {_megabytes(free)} MB, of which "
            f"{_megabytes(RESERVE_BYTES)} MB stay free: make room, or choose less"
        )


def is_disk_full(error: OSError) -> bool:
    """Say whether an error means that the disk, or what this user may use of it, is full."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f}"
