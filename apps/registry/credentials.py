"""Seals the credentials of providers for the database. The key is derived from the signing key (CLAW_SECRET_KEY).

Whoever has only the database cannot read them. When the signing key changes they are unreadable: that is an error with
a name, and the way out is the old key or the credential entered anew.
"""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from apps.core.errors import Conflict

_PURPOSE = b"claw-platform: credentials of providers"


class CredentialUnreadable(Conflict):
    """The credential was sealed with another signing key."""

    code = "credential_unreadable"


def seal_credential(credential: str) -> str:
    """Return what may be stored; "" stays "" (a provider that asks for none)."""
    return _fernet().encrypt(credential.encode()).decode() if credential else ""


def unseal_credential(sealed: str) -> str:
    """Return the credential; raises CredentialUnreadable."""
    if not sealed:
        return ""
    try:
        return _fernet().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise CredentialUnreadable(
            "this engine's credential was sealed with another CLAW_SECRET_KEY: bring that key back, or enter the "
            "credential anew (PATCH /api/v1/engines/<id>)"
        ) from error


def _fernet() -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(settings.SECRET_KEY.encode())
    return Fernet(base64.urlsafe_b64encode(key))
