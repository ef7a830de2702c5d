"""What a person reads once the platform is healthy."""

import subprocess
from dataclasses import replace
from pathlib import Path

from worker.host.banner import Welcome, render_banner

FIRST = Welcome(
    base_url="http://127.0.0.1:8000",
    email="admin@claw.localhost",
    password="swordfish",
    project="sample",
    api_key="claw-abc",
    credentials_file="/data/credentials.json",
    has_engine=True,
    can_be_interrupted=True,
)


def test_the_first_start_shows_the_secrets() -> None:
    text = render_banner(FIRST)
    assert text.count("swordfish") == 1
    assert '-H "Authorization: Bearer claw-abc"' in text
    assert 'baseUrl: "http://127.0.0.1:8000/v1", apiKey: "claw-abc"' in text
    assert "sendSessionAffinityHeaders: true, supportsPromptCacheKey: true" in text


def test_openclaw_is_told_the_context_that_the_engine_has() -> None:
    small = render_banner(replace(FIRST, context_tokens=2048))
    assert "contextWindow: 2048,\n          maxTokens: 512,\n" in small
    assert "this engine has 2,048" in small
    large = render_banner(replace(FIRST, context_tokens=65536))
    assert "contextWindow: 65536,\n          maxTokens: 4096,\n" in large
    assert "this engine has" not in large


def test_the_first_call_ends_soon() -> None:
    assert '"max_tokens": 32' in render_banner(FIRST)


def test_later_starts_show_none_but_say_where_they_are() -> None:
    text = render_banner(replace(FIRST, password="", api_key=""))
    assert "$CLAW_KEY" in text
    assert "/data/credentials.json" in text


def test_what_a_later_start_says_of_the_key_can_be_pasted(tmp_path: Path) -> None:
    kept = tmp_path / "its own folder" / "credentials.json"
    kept.parent.mkdir()
    kept.write_text('{"agent_key": "claw-kept"}')
    lines = render_banner(replace(FIRST, api_key="", credentials_file=str(kept))).splitlines()
    start = next(number for number, line in enumerate(lines) if "export CLAW_KEY=" in line)
    pasted = "\n".join([*lines[start : start + 2], 'printf %s "$CLAW_KEY"'])
    assert subprocess.run(["bash", "-c", pasted], capture_output=True, text=True, check=True).stdout == "claw-kept"


def test_a_start_without_an_engine_says_so() -> None:
    assert "none: model calls are answered once one is registered" in render_banner(replace(FIRST, has_engine=False))


def test_it_names_the_way_to_stop_that_works_here() -> None:
    assert render_banner(FIRST).endswith("Ctrl-C stops everything.\n")
    assert render_banner(replace(FIRST, can_be_interrupted=False)).endswith("`make stop` stops everything.\n")


def test_its_last_lines_say_where_to_go_and_by_which_log_in() -> None:
    assert render_banner(FIRST).splitlines()[-3:] == [
        "Ready: http://127.0.0.1:8000/",
        "Log in as admin@claw.localhost, password swordfish (shown once)",
        "Ctrl-C stops everything.",
    ]
    later = render_banner(replace(FIRST, password="", has_engine=False)).splitlines()
    assert later[-3:-1] == [
        "Ready, but for an engine: http://127.0.0.1:8000/",
        "Log in as admin@claw.localhost, the password in /data/credentials.json",
    ]
