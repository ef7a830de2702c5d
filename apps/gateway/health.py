"""`/healthz` (the process runs) and `/readyz` (it can do its work), from what the process knows anyway."""

from starlette.requests import Request
from starlette.responses import Response

from apps.gateway.desk import Desk
from apps.gateway.errors import answer_json

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})


class Health:
    """Answers load balancers and supervisors; needs no key and asks nobody."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def healthz(self, request: Request) -> Response:
        return answer_json(request, {"status": "up"})

    async def hello(self, request: Request) -> Response:
        """Some agents ask whether there is anybody before their first call."""
        return answer_json(request, {"message": "hello"})

    async def readyz(self, request: Request) -> Response:
        routes = self.desk.routes
        parts = {
            "database": self.desk.writer.is_connected and routes.is_fresh,
            "redis": routes.is_listening,
            "engine": any(engine.is_up for engine in routes.snapshot.engines),
        }
        is_ready = all(parts.values())
        body = {"status": "ready" if is_ready else "not ready", **parts, "lost_exchanges": self.desk.writer.n_lost}
        body["waiting_calls"] = self.desk.engines.gate.n_waiting
        return answer_json(request, body, status=200 if is_ready else 503)
