"""Files and folders that appear whole or not at all. Knows nothing of what they hold."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIGNAL_MARK = "trainer.stop"  # there while an attempt is stopping because of a signal; the launcher's own


def write_atomic(path: Path, text: str) -> None:
    """Put `text` at `path` by an atomic rename, on disk before it returns."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def partial_of(folder: Path) -> Path:
    """Return where `folder` is built before it gets its name."""
    return folder.with_name(f".{folder.name}.partial")


@contextmanager
def build_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which then gets its name; what was begun in vain leaves no bytes behind."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    publish_folder(folder)


def publish_folder(folder: Path) -> None:
    """Give the folder built at `partial_of(folder)` its name, its files forced to disk first."""
    partial = partial_of(folder)
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Force the folder's names to disk: a rename is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
