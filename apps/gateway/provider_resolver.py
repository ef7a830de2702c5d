"""Looks up the hosts of providers, and overhears what they may not be. Knows no HTTP."""

import socket

from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver
from django.conf import settings

from apps.registry.addresses import find_reason


class ProviderResolver(ThreadedResolver):
    """Anybody can have a name lead anywhere; an address that stands in a provider's row has been looked at before."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return where providers may be; raises OSError where there is no such place."""
        found: list[ResolveResult] = await super().resolve(host, port, family)
        if host in settings.CLAW.provider_hosts:
            return found
        reasons = [find_reason(place["host"]) for place in found]
        allowed = [place for place, reason in zip(found, reasons, strict=True) if not reason]
        if found and not allowed:
            raise OSError(None, f"{host} {reasons[0]}")
        return allowed
