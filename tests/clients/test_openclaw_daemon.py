"""OpenClaw's daemon with many sessions at once, over each of its three APIs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.configs import OPENCLAW_APIS, name_provider, write_openclaw
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess
from tests.clients.openclaw import Daemon, OpenClaw
from tests.clients.pool import check_conversation

SESSIONS = {"one": OPENCLAW_APIS[0], "two": OPENCLAW_APIS[0], "three": OPENCLAW_APIS[1], "four": OPENCLAW_APIS[2]}

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_sessions_at_once_stay_apart(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    openclaw = OpenClaw(tmp_path, config=write_config(gateway))

    def converse(daemon: Daemon, *, session: str, api: str) -> None:
        for turn in TURNS:
            assert "Answer number" in daemon.say(turn, session=session, model=f"{api}/{MODEL}")

    with openclaw.run_daemon() as daemon, ThreadPoolExecutor() as people:
        for talk in [people.submit(converse, daemon, session=session, api=api) for session, api in SESSIONS.items()]:
            talk.result()

    sessions = pool()
    assert len({session.row.session_key for session in sessions if session.row.session_key}) == len(SESSIONS)
    assert len(sessions) == len(SESSIONS)
    for session in sessions:
        check_conversation(session)


def write_config(gateway: GatewayProcess) -> str:
    """Return the configuration with a provider for each API."""
    config = json.loads(write_openclaw(url=gateway.url, key=gateway.secret, model=MODEL))
    config["models"]["providers"] = {
        api: name_provider(url=gateway.url, key=gateway.secret, model=MODEL, api=api) for api in OPENCLAW_APIS
    }
    config["agents"]["defaults"]["model"]["primary"] = f"{OPENCLAW_APIS[0]}/{MODEL}"
    return json.dumps(config)
