"""What a person reads once the platform is healthy: where to look, and how to point an agent at it."""

import json
import shlex
import sys
from dataclasses import dataclass

OPENCLAW_NEEDS = 13_000  # tokens of its first request
FIRST_CALL = {"model": "default", "max_tokens": 32, "messages": [{"role": "user", "content": "Say hello."}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What the banner tells. Secrets are empty when they were shown before."""

    base_url: str
    email: str
    password: str
    project: str
    api_key: str
    credentials_file: str
    has_engine: bool
    can_be_interrupted: bool  # a person sits at the terminal that this runs in
    context_tokens: int | None = None  # what the engines have for request and answer


def render_banner(welcome: Welcome) -> str:
    """Return the banner as text."""
    parts = [_links(welcome), _curl(welcome), _openclaw(welcome)]
    line = "─" * 78
    return f"\n{line}\n" + "\n\n".join(parts) + f"\n{line}\n{_last_words(welcome)}\n"


def _last_words(welcome: Welcome) -> str:
    """Where to go now, by which log-in, and how to end: what stands above may have left the window."""
    where = f"Ready{'' if welcome.has_engine else ', but for an engine'}: {welcome.base_url}/"
    kept = f"the password in {welcome.credentials_file}"
    password = f"password {welcome.password} (shown once)" if welcome.password else kept
    end = "Ctrl-C" if welcome.can_be_interrupted else "`make stop`"
    return f"{where}\nLog in as {welcome.email}, {password}\n{end} stops everything."


def _links(welcome: Welcome) -> str:
    password = "its password stands below" if welcome.password else "password as before"
    key = f"{welcome.api_key}   (shown once)" if welcome.api_key else "as before"
    return "\n".join(
        [
            f"  Console   {welcome.base_url}/",
            f"  Log in    {welcome.email}   ({password})",
            f"  Project   {welcome.project}",
            f"  API key   {key}",
            f"            both are kept in {welcome.credentials_file}",
            *([] if welcome.has_engine else ["  Engine    none: model calls are answered once one is registered"]),
        ]
    )


def _curl(welcome: Welcome) -> str:
    return "\n".join(
        [
            "  Try it:",
            *([] if welcome.api_key else [f"    export CLAW_KEY=$({_read_key(welcome.credentials_file)})"]),
            f"    curl {welcome.base_url}/v1/chat/completions \\",
            f'      -H "Authorization: Bearer {welcome.api_key or "$CLAW_KEY"}" -H "Content-Type: application/json" \\',
            "      -d '" + json.dumps(FIRST_CALL) + "'",
        ]
    )


def _read_key(credentials_file: str) -> str:
    """Return the command that prints the kept key: Python is there, jq may not be."""
    return f"""{shlex.quote(sys.executable)} -c 'import json, sys; print(json.load(open(sys.argv[1]))["agent_key"])' \\
      {shlex.quote(credentials_file)}"""


def _openclaw(welcome: Welcome) -> str:
    context = welcome.context_tokens or 32768
    warning = [
        f"  OpenClaw's first request alone is about {OPENCLAW_NEEDS:,} tokens; this engine has {context:,}. Serve it a",
        "  model with the context for it first: CLAW_MODEL, ENGINE_URLS.",
    ]
    return "\n".join(
        [
            *(warning if context < OPENCLAW_NEEDS else []),
            "  Point OpenClaw at it (~/.openclaw/openclaw.json; the compat flags put its session id on the wire):",
            "    { models: { providers: { claw: {",
            f'        baseUrl: "{welcome.base_url}/v1", apiKey: "{welcome.api_key or "claw-…"}",',
            f'        models: [ {{ id: "default", name: "Claw", contextWindow: {context},',
            f"          maxTokens: {min(4096, context // 4)},",
            "          compat: { sendSessionAffinityHeaders: true, supportsPromptCacheKey: true } } ] } } },",
            '      agents: { defaults: { model: "claw/default" } } }',
        ]
    )
