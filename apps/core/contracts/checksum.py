"""One checksum for one folder, the same on the side that writes an adapter and on the side that serves it.

Knows nothing of what the files hold.
"""

import hashlib
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def hash_folder(folder: Path) -> str:
    """Return the SHA-256 (hex) over the names and bytes of the files in `folder`, in name order.

    Each file enters as its name, a zero byte, its length in ASCII, a zero byte and its content, so that no byte can
    move from one file to the next unseen. Sub-folders do not count: an adapter has none.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
