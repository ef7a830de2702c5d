"""Notices that a client leaves while its answer is being made."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from apps.gateway.bodies import ClientGoneError

PATIENCE_S = 0.02  # an answer that is sooner needs nobody to watch the door


class Departure:
    """`with Departure(receive):` ends the block with ClientGoneError as soon as the client hangs up.

    The block is cancelled like any asyncio code, so whatever it holds open (the engine's answer) is closed. Use it only
    after the request's body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (ASGI runs in a task)
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._start_watching)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # A cancellation that also came from elsewhere (shutdown) goes on as what it is.
        if self._is_gone and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGoneError from error

    def _start_watching(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()
