"""Calls from the platform to addresses that its users choose (webhooks): only to the open internet, never back to us.

A name is resolved and every address that it leads to is looked at before anything is sent; the connection is looked at
again, since a name can lead elsewhere a moment later. No redirect is followed. Operators name hosts that may be
reached although they are private (CLAW_WEBHOOK_HOSTS); the platform's own door stays shut even then.
"""

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import psutil
import urllib3
from django.conf import settings

from apps.core.deadlines import WatchedConnection, WatchedSecureConnection, hang_up_after
from apps.core.errors import Forbidden, InvalidInput, ServiceError, Unavailable
from apps.core.retry_after import read_retry_after_s

CONNECT_S = 5.0
MAX_URL = 1000
MARK_HEADER = "X-Claw-Platform"  # says which platform calls: one that hears itself stops there
HTTPS_PORT, HTTP_PORT = 443, 80
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_OPEN_V6 = ipaddress.IPv6Network("2000::/3")  # all that is given out of IPv6; old forms of IPv4 addresses lie outside
_PROTOCOLS_V4 = ipaddress.IPv4Network("192.0.0.0/24")  # of IETF protocols; ipaddress calls some of it global


class OutwardNonsense(ServiceError):
    """The other side answered in a way that cannot be used."""

    status = 502
    code = "outward_nonsense"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: at most `max_bytes` of it. `retry_after_s`: what the other side asked to be left alone for."""

    status: int
    content: bytes
    retry_after_s: int = 0


def own_mark() -> str:
    """Return what tells this platform from others; it gives nothing away."""
    return hmac.new(settings.SECRET_KEY.encode(), b"claw-platform: outward calls", hashlib.sha256).hexdigest()[:32]


def check_url(url: str, *, field: str = "url") -> str:
    """Return the address if it may be called as far as can be said now. Raises InvalidInput and Forbidden."""
    _check_host(split_url(url, field=field), field=field)
    return url


def split_url(url: str, *, field: str) -> SplitResult:
    """Return the parts of an address that a call can be made to; raises InvalidInput for every other text."""
    if " " in url or not url.isprintable():  # looked at first: urlsplit drops line breaks in silence
        raise InvalidInput("an address has no blanks and no line breaks: write %20 for a blank", field=field)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"this is no address: {error}", field=field) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or len(url) > MAX_URL:
        raise InvalidInput("an address begins with https:// or http:// and a host", field=field)
    if port == 0:
        raise InvalidInput("a port lies from 1 to 65535: nothing can listen at 0", field=field)
    if "@" in parts.netloc or "#" in url:
        raise InvalidInput("the address may hold no user and no #", field=field)
    return parts


def post_outward(url: str, body: bytes, *, headers: Mapping[str, str], read_s: float, max_bytes: int) -> Answer:
    """Send `body` and return the answer. Raises Unavailable when none has come whole in `read_s`, Forbidden for an
    address that may not be called, OutwardNonsense for redirects and for answers that are too long.
    """
    check_url(url)
    parts = urlsplit(url)
    pool = urllib3.PoolManager(num_pools=1, retries=False)
    pool.pool_classes_by_scheme = {"http": _GuardedPool, "https": _GuardedSecurePool}
    timeout = urllib3.Timeout(connect=min(CONNECT_S, read_s), read=read_s)
    sent = {**headers, MARK_HEADER: own_mark()}
    with hang_up_after(read_s) as is_over:
        try:
            answer = pool.request(
                "POST", url, body=body, headers=sent, timeout=timeout, redirect=False, preload_content=False
            )
            content = answer.read(max_bytes + 1)
        except urllib3.exceptions.HTTPError as error:
            if is_over.is_set() or isinstance(error, urllib3.exceptions.TimeoutError):
                raise Unavailable(f"{parts.hostname} gave no answer in {read_s:g} s") from error
            raise Unavailable(f"{parts.hostname} cannot be reached: {type(error).__name__}") from error
        finally:
            pool.clear()
    if is_over.is_set():
        raise Unavailable(f"{parts.hostname} gave no answer in {read_s:g} s")
    if answer.headers.get(MARK_HEADER) == own_mark():
        raise Forbidden(f"{parts.hostname} leads back to this platform", field="url")
    if 300 <= answer.status < 400:
        raise OutwardNonsense(f"{parts.hostname} answered {answer.status} and points elsewhere: give the last address")
    if len(content) > max_bytes:
        raise OutwardNonsense(f"{parts.hostname} answered with more than {max_bytes} bytes")
    retry_after_s = read_retry_after_s(answer.headers.get("Retry-After", ""))
    return Answer(status=answer.status, content=content, retry_after_s=retry_after_s)


def _check_host(parts: SplitResult, *, field: str) -> None:
    host = parts.hostname or ""
    port = parts.port or (HTTPS_PORT if parts.scheme == "https" else HTTP_PORT)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"nobody knows a host {host}", field=field) from error
    for place in found:
        _check_address(host, str(place[4][0]), port, field=field)


def _check_address(host: str, address: str, port: int, *, field: str = "url") -> None:
    """Raise Forbidden if `host` came out at an address of ours, or at one that is not on the open internet."""
    place = read_place(address)
    is_named_so = host == urlsplit(settings.CLAW.public_base_url).hostname
    is_own = is_named_so or str(place) in _own_addresses() or place.is_loopback or place.is_unspecified
    if is_own and port in _own_ports():
        raise Forbidden(f"{host} is this platform itself: it would call itself", field=field)
    if host in settings.CLAW.webhook_hosts:
        return
    if is_own or not _is_open(place):
        name = host if host == str(place) else f"{host} leads to {place}, which"
        words = f"{name} is not on the open internet; only operators can allow it (CLAW_WEBHOOK_HOSTS)"
        raise Forbidden(words, field=field)


def _is_open(place: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Say whether an address is one of the open internet's."""
    if isinstance(place, ipaddress.IPv6Address):
        return place.is_global and place in _OPEN_V6
    return place.is_global and not place.is_multicast and place not in _PROTOCOLS_V4


def read_place(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address that is meant: an IPv4 one may stand in an IPv6 one (mapped, NAT64, 6to4)."""
    place = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(place, ipaddress.IPv4Address):
        return place
    if place in _NAT64:
        return ipaddress.IPv4Address(int(place) & 0xFFFFFFFF)
    return place.ipv4_mapped or place.sixtofour or place


def _own_addresses() -> set[str]:
    return {address.address.partition("%")[0] for card in psutil.net_if_addrs().values() for address in card}


def _own_ports() -> set[int]:
    parts = urlsplit(settings.CLAW.public_base_url)
    public = parts.port or (HTTPS_PORT if parts.scheme == "https" else HTTP_PORT)
    return {settings.CLAW.port, public}


class _GuardedConnection(WatchedConnection):
    def connect(self) -> None:
        super().connect()
        _check_address(self.host, self.sock.getpeername()[0], self.port or HTTP_PORT)


class _GuardedSecureConnection(WatchedSecureConnection):
    def connect(self) -> None:
        super().connect()
        _check_address(self.host, self.sock.getpeername()[0], self.port or HTTPS_PORT)


class _GuardedPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _GuardedConnection


class _GuardedSecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _GuardedSecureConnection
