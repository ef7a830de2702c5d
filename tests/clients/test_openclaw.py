"""OpenClaw by its command on each of its three APIs."""

from pathlib import Path

import pytest

from tests.clients.configs import OPENCLAW_APIS, write_openclaw
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess
from tests.clients.openclaw import OpenClaw
from tests.clients.pool import check_conversation

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("api", OPENCLAW_APIS)
def test_a_session_is_one_chain(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path, api: str) -> None:
    openclaw = OpenClaw(tmp_path, config=write_openclaw(url=gateway.url, key=gateway.secret, model=MODEL, api=api))

    for turn in TURNS:
        assert "Answer number" in openclaw.say(turn, session="otters")

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key == "otters"
