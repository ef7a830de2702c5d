"""Threads for synchronous code behind ASGI that are kept from request to request, and with them their connections to
the database: left alone, Django begins a new thread, and so a new connection, for each. Knows no Django.
"""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

from asgiref.sync import ThreadSensitiveContext
from starlette.types import ASGIApp, Receive, Scope, Send

MOST_KEPT = 8  # idle; while more requests come at once there are more


class KeptThreads:
    """An ASGI application each of whose requests has a thread to itself, one that was used last if there is one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._idle: list[Executor] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        thread = self._idle.pop() if self._idle else ThreadPoolExecutor(1, thread_name_prefix="request")
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.app(scope, receive, send)
        finally:
            # Of a request that was given up the thread may still be at work: it is idle when it gets to this.
            done = asyncio.get_running_loop().run_in_executor(thread, _do_nothing)
            done.add_done_callback(lambda _: self._keep(thread))

    def _keep(self, thread: Executor) -> None:
        if len(self._idle) < MOST_KEPT:
            self._idle.append(thread)
        else:
            thread.shutdown(wait=False)


def _do_nothing() -> None:
    return
