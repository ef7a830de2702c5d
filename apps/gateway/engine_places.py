"""Looks up hosts: anybody's, and those of providers, of which it overhears what they may not be. Knows no HTTP."""

import asyncio
import socket

from django.conf import settings

from apps.registry.addresses import find_reason, is_address


async def find_places(host: str, port: int) -> list[str]:
    """Return the addresses of a host; raises OSError or UnicodeError where there is no such host."""
    if is_address(host):
        return [host]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]


async def find_provider_places(host: str, port: int) -> list[str]:
    """Return the same less those where no provider may be; raises OSError where none is left.

    Anybody can have a name lead anywhere; an address that stands in a provider's row has been looked at before.
    """
    found = await find_places(host, port)
    if is_address(host) or host in settings.CLAW.provider_hosts:
        return found
    reasons = [find_reason(place) for place in found]
    allowed = [place for place, reason in zip(found, reasons, strict=True) if not reason]
    if found and not allowed:
        raise OSError(None, f"{host} {reasons[0]}")
    return allowed
