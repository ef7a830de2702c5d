"""Reasoning that travels with the client, in the field that OpenAI keeps encrypted too.

Some clients send back nothing else of it. The text itself is in there: nothing needs to be looked up, and a client may
keep it for as long as it likes. It is sealed because redaction cannot look inside: what the pool keeps of a call must
not hold in one field what was taken out of the others. Each project has a key of its own: what one was told, no other
can have read here. With another CLAW_SECRET_KEY it cannot be read.
"""

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_PURPOSE = b"claw-platform: reasoning that clients keep"


def seal_reasoning(text: str, *, project_id: str) -> str:
    """Return the text as an opaque string, another one each time."""
    return _fernet(settings.SECRET_KEY, project_id).encrypt(text.encode()).decode()


def unseal_reasoning(sealed: str, *, project_id: str) -> str | None:
    """Return the text, None when it was not sealed here for the project."""
    try:
        return _fernet(settings.SECRET_KEY, project_id).decrypt(sealed).decode()
    except (InvalidToken, ValueError):
        return None


@lru_cache(maxsize=1024)
def _fernet(secret_key: str, project_id: str) -> Fernet:
    info = b"%b, of %b" % (_PURPOSE, project_id.encode())
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret_key.encode())
    return Fernet(base64.urlsafe_b64encode(key))
