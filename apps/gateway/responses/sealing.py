"""Reasoning that travels with the client, in the field that OpenAI keeps encrypted.

Some clients send back nothing else of it. The text itself is in there: nothing needs to be looked up, whichever gateway
reads it, and a client may keep it for as long as it likes. It is no secret: the client has been told the same text.
"""

import base64
import binascii

_MARK = b"claw:reasoning:"  # 15 bytes: every sealed text begins with the same 20 characters


def seal_reasoning(text: str) -> str:
    """Return the text as an opaque string."""
    return base64.b64encode(_MARK + text.encode()).decode()


def unseal_reasoning(sealed: str) -> str | None:
    """Return the text, None when it was not sealed here."""
    try:
        data = base64.b64decode(sealed, validate=True)
        return data.removeprefix(_MARK).decode() if data.startswith(_MARK) else None
    except (binascii.Error, ValueError):
        return None
