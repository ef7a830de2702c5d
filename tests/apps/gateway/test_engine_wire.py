"""HTTP to engines, byte for byte: what servers may send, and what they may not."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from apps.gateway import engine_wire
from apps.gateway.engine_places import find_places
from apps.gateway.engine_wire import UnfitError, UnreachedError, Wire, WireError, Wires

Say = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Reads one request at a time and says what it was told to, piece by piece."""

    def __init__(self, *pieces: bytes, is_over: bool = False, pause_s: float = 0.005) -> None:
        self.pieces = pieces
        self.is_over = is_over  # it hangs up then
        self.pause_s = pause_s
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.n_connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        try:
            while True:
                await self._read(reader)
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(self.pause_s)
                if self.is_over:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Content-Length"))
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(int(length)))


@asynccontextmanager
async def serving(server: Server, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Give the server's address."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}/v1/x"
    finally:
        listener.close()


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    wires = Wires(find_places)
    yield wires
    wires.close()


def ignore() -> None:
    """Nobody wants to know."""


async def ask(wires: Wires, url: str, *, is_whole: bool = True, body: bytes = b"{}", credential: str = "") -> Wire:
    return await wires.post(url, body, credential=credential, is_whole=is_whole, on_head=ignore)


async def read(wires: Wires, url: str, *, is_whole: bool = True) -> bytes:
    """Ask, read to the end, and leave."""
    wire = await ask(wires, url, is_whole=is_whole)
    try:
        parts = []
        while data := await wire.read():
            parts.append(data)
        return b"".join(parts)
    finally:
        wire.leave()


ANSWERS = {
    "length": [b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\n\r\nhel", b"lo"],
    "chunks": [CHUNKED, b"2\r\nhe\r\n3\r", b"\nllo\r\n", b"0\r\n\r\n"],
    "provisional": [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"],
}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS)
async def test_it_reads_what_comes_in_pieces_and_keeps_the_connection(
    wires: Wires, pieces: list[bytes], *, is_whole: bool
) -> None:
    server = Server(*pieces)
    async with serving(server) as url:
        assert [await read(wires, url, is_whole=is_whole) for _ in range(3)] == [b"hello"] * 3
    assert server.n_connections == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_answer_without_a_length_ends_with_the_connection(wires: Wires, *, is_whole: bool) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", is_over=True)
    async with serving(server) as url:
        assert [await read(wires, url, is_whole=is_whole) for _ in range(2)] == [b"hello"] * 2
    assert server.n_connections == 2


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_refusal_that_is_packed_is_its_status_without_words(wires: Wires, *, is_whole: bool) -> None:
    head = b"HTTP/1.1 429 Slow down\r\nContent-Encoding: gzip\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n"
    async with serving(Server(head + b"ok")) as url:
        wire = await ask(wires, url, is_whole=is_whole)
        assert (wire.status, wire.retry_after, await wire.read_all()) == (429, "7", b"")
        wire.leave()


async def test_a_server_that_wants_no_second_request_gets_none(wires: Wires) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    async with serving(server) as url:
        assert [await read(wires, url) for _ in range(2)] == [b"ok"] * 2
    assert server.n_connections == 2


FAULTS = {
    "cut": [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"],
    "cut chunks": [CHUNKED + b"5\r\nhello\r\n"],
    "no head": [b""],
    "no http": [b"\x15\x03\x01\x00\x02\x02"],
    "packed": [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"],
    "long head": [b"HTTP/1.1 200 OK\r\n", *[b"X-Header: %b\r\n" % (b"x" * 8000)] * 20],
}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("pieces", FAULTS.values(), ids=FAULTS)
async def test_what_is_no_whole_answer_is_a_fault(wires: Wires, pieces: list[bytes], *, is_whole: bool) -> None:
    async with serving(Server(*pieces, is_over=True)) as url:
        with pytest.raises(WireError):
            await read(wires, url, is_whole=is_whole)


async def test_what_came_before_a_fault_is_read_first(wires: Wires) -> None:
    async with serving(Server(CHUNKED + b"5\r\nhello\r\n", is_over=True)) as url:
        wire = await ask(wires, url, is_whole=False)
        assert await wire.read() == b"hello"
        with pytest.raises(WireError):
            await wire.read()


@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_answer_without_end_is_ended(wires: Wires, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool) -> None:
    monkeypatch.setattr(engine_wire, "MAX_ANSWER_BYTES", 100_000)
    chunk = b"2710\r\n%b\r\n" % (b"x" * 10_000)
    async with serving(Server(CHUNKED, *[chunk] * 1000)) as url:
        with pytest.raises(UnfitError):
            await read(wires, url, is_whole=is_whole)
    async with serving(Server(CHUNKED, *[chunk] * 10, b"0\r\n\r\n")) as url:
        for _ in range(2):  # each answer is counted by itself
            assert len(await read(wires, url, is_whole=is_whole)) == 100_000


async def test_the_request_is_what_a_server_reads(wires: Wires) -> None:
    server = Server(OK)
    async with serving(server) as url:
        wire = await ask(wires, f"{url}/ü y?z=1", body=b"x" * 500_000, credential="sk-1")
        wire.leave()
    assert server.bodies == [b"x" * 500_000]
    first, *lines = server.heads[0].strip().split("\r\n")
    assert first == "POST /v1/x/%C3%BC%20y?z=1 HTTP/1.1"
    assert f"Host: {url.split('/')[2]}" in lines
    assert {"Content-Type: application/json", "Authorization: Bearer sk-1"} <= set(lines)


async def test_a_wire_that_is_left_early_is_closed(wires: Wires) -> None:
    server = Server(CHUNKED + b"5\r\nhello\r\n", *[b"1\r\nx\r\n"] * 1000)
    async with serving(server) as url:
        wire = await ask(wires, url, is_whole=False)
        wire.leave()
        assert wire.transport.is_closing()


async def test_a_long_answer_that_nobody_read_holds_up_no_later_one(wires: Wires) -> None:
    body = b"x" * 150_000  # comes in one piece, more than may wait
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    async with serving(server) as url, asyncio.timeout(10):
        for _ in range(5):
            wire = await ask(wires, url, is_whole=False)
            await asyncio.sleep(0.01)
            wire.leave()
        assert await read(wires, url, is_whole=False) == body


async def test_words_that_nobody_asked_for_are_not_the_next_answer(wires: Wires) -> None:
    server = Server(OK, OK)  # the second one belongs to nothing
    async with serving(server) as url:
        assert await read(wires, url) == b"ok"
        await asyncio.sleep(0.05)
        assert await read(wires, url) == b"ok"
    assert server.n_connections == 2


async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_wire, "KEPT_ALIVE_S", 0.05)
    server = Server(OK)
    async with serving(server) as url:
        wire = await ask(wires, url)
        wire.leave()
        async with asyncio.timeout(10):
            while not wire.transport.is_closing():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert await read(wires, url) == b"ok"
    assert server.n_connections == 2


@pytest.mark.parametrize("pieces", [[], [CHUNKED + b"1\r\nx\r\n"]])
async def test_a_server_that_falls_silent_is_given_up(
    wires: Wires, pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_wire, "SILENCE_S", 0.1)
    async with serving(Server(*pieces, pause_s=60)) as url, asyncio.timeout(10):
        with pytest.raises(WireError, match="in time"):
            await read(wires, url, is_whole=False)


async def test_a_server_that_nobody_listens_to_is_not_given_up(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_wire, "SILENCE_S", 0.1)
    piece = b"100000\r\n%b\r\n" % (b"x" * 0x100000)
    async with serving(Server(CHUNKED, *[piece] * 10, b"0\r\n\r\n", pause_s=0)) as url:
        wire = await ask(wires, url, is_whole=False)
        await asyncio.sleep(0.4)
        n_read = 0
        while data := await wire.read():
            n_read += len(data)
        wire.leave()
    assert n_read == 10 * 0x100000


async def test_what_nobody_reads_does_not_gather_here(wires: Wires) -> None:
    piece = b"10000\r\n%b\r\n" % (b"x" * 0x10000)
    async with serving(Server(CHUNKED, *[piece] * 200, b"0\r\n\r\n", pause_s=0)) as url:
        wire = await ask(wires, url, is_whole=False)
        await asyncio.sleep(0.2)
        sizes = []
        while data := await wire.read():
            sizes.append(len(data))
        wire.leave()
    assert sum(sizes) == 200 * 0x10000
    assert max(sizes) <= 4 * engine_wire.HIGH_WATER


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://no.such.host.invalid/x", "ftp://x/y", "http://x:y/z"])
async def test_a_server_that_is_not_there_is_told_from_one_that_breaks(wires: Wires, url: str) -> None:
    with pytest.raises(UnreachedError):
        await ask(wires, url)


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Return a server's context with a certificate that nobody vouches for, of 127.0.0.1."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    file = folder / "both.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def test_a_server_that_nobody_vouches_for_gets_no_credential(wires: Wires, tmp_path: Path) -> None:
    server = Server(OK)
    async with serving(server, tls=make_certificate(tmp_path)) as url:
        with pytest.raises(UnreachedError, match="certificate"):
            await ask(wires, url, credential="sk-1")
    assert server.heads == []


def test_it_runs_on_the_loop_that_the_server_has() -> None:
    """Uvicorn's loop is uvloop where there is one; the tests' is not."""

    async def go() -> tuple[bytes, bytes]:
        server, wires = Server(CHUNKED, b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), Wires(find_places)
        async with serving(server) as url:
            answers = await read(wires, url), await read(wires, url, is_whole=False)
        wires.close()
        assert server.n_connections == 1
        return answers

    assert uvloop.run(go()) == (b"hello", b"hello")
