"""What a person writes into each agent's own configuration. `docs/agents/` shows the same; a test compares them."""

import json
import textwrap

OPENCLAW_APIS = ("openai-completions", "openai-responses", "anthropic-messages")


def write_codex(*, url: str, model: str) -> str:
    """Return `~/.codex/config.toml`."""
    return textwrap.dedent(f"""\
        model = "{model}"
        model_provider = "claw"

        [model_providers.claw]
        name = "Claw Platform"
        base_url = "{url}/v1"
        env_key = "CLAW_API_KEY"
        wire_api = "responses"
        """)


def write_claude_code(*, url: str, key: str, model: str) -> dict[str, str]:
    """Return the environment."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def write_openclaw(*, url: str, key: str, model: str, api: str = OPENCLAW_APIS[0]) -> str:
    """Return `~/.openclaw/openclaw.json`."""
    config = {
        "models": {"mode": "merge", "providers": {"claw": name_provider(url=url, key=key, model=model, api=api)}},
        "agents": {"defaults": {"model": {"primary": f"claw/{model}"}}},
    }
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def name_provider(*, url: str, key: str, model: str, api: str) -> dict[str, object]:
    """Return one of OpenClaw's providers."""
    entry = {
        "id": model,
        "name": model,
        "reasoning": True,
        "contextWindow": 128000,
        "maxTokens": 8192,
        "compat": {"sendSessionAffinityHeaders": True, "supportsPromptCacheKey": True},
    }
    base_url = url if api == "anthropic-messages" else f"{url}/v1"
    return {"baseUrl": base_url, "apiKey": key, "api": api, "models": [entry]}


def write_openclaw_daemon(*, port: int, token: str) -> dict[str, object]:
    """Return what OpenClaw's own daemon needs beside it, its door for HTTP open."""
    return {
        "gateway": {
            "mode": "local",
            "bind": "loopback",
            "port": port,
            "auth": {"mode": "token", "token": token},
            "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
        },
        "update": {"checkOnStart": False},
    }


def write_exports(environment: dict[str, str]) -> str:
    """Return an environment as a shell takes it."""
    return "".join(f"export {name}={value}\n" for name, value in environment.items())
