"""Where providers may be. Owners of teams choose these addresses and the platform calls them: what only the platform
can reach must not come into their reach by it.

Refused, unless operators name the host (CLAW_PROVIDER_HOSTS): addresses of this machine, once others than its own users
may reach the platform, and those where clouds keep their machines' secrets, link-local ones and a few others. A name
is looked at again when it has been resolved, since anybody can have a name lead anywhere.
"""

import ipaddress
import socket
from collections.abc import Iterable

from django.conf import settings

from apps.core.errors import Forbidden
from apps.core.outward import read_place

# Metadata services outside the link-local networks: AWS, Google, Alibaba, Oracle, Azure.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"))
)
_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def check_host(host: str) -> None:
    """Raise Forbidden if no provider may be at this host, as far as can be said without asking a name server."""
    allowed = settings.CLAW.provider_hosts
    if host in allowed:
        return
    is_this_machine = host in _NAMES or host.endswith(".localhost")
    _refuse(host, addresses=["127.0.0.1"] if is_this_machine else [host])
    if allowed:
        raise Forbidden(
            f"this platform's operators allow no provider at {host}; they allow {', '.join(allowed)} "
            "(CLAW_PROVIDER_HOSTS)",
            field="base_url",
        )


def check_name(host: str) -> None:
    """Raise Forbidden if the host's name leads where no provider may be; one that leads nowhere is no fault."""
    if host in settings.CLAW.provider_hosts:
        return
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    _refuse(host, addresses=[str(place[4][0]) for place in found])


def check_peer(host: str, address: str) -> None:
    """Raise Forbidden if a connection to this host came out where no provider may be."""
    if host not in settings.CLAW.provider_hosts:
        _refuse(host, addresses=[address])


def find_reason(address: str) -> str:
    """Return why no provider may be at this address, "" when one may; a name says nothing."""
    if not is_address(address):
        return ""
    place = read_place(address)
    if place.is_link_local:
        return "is link-local, as clouds' metadata services are"
    if place in _METADATA:
        return "is where a cloud keeps its machines' secrets"
    if (place.is_loopback or place.is_unspecified) and not settings.CLAW.is_for_this_host:
        return "is this machine itself, which others than its own users reach here"
    return ""


def is_address(host: str) -> bool:
    """Whether this is an IP address, not a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _refuse(host: str, *, addresses: Iterable[str]) -> None:
    for reason in filter(None, map(find_reason, addresses)):
        raise Forbidden(f"{host} {reason}; only operators can allow it (CLAW_PROVIDER_HOSTS)", field="base_url")
