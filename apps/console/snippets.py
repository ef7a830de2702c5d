"""Ready commands and configurations that a page shows for copying. Knows the public address, no secrets of its own."""

import json
import shlex
from typing import Any

from django.conf import settings

from apps.registry.providers import RESERVED_NAME

MODEL = RESERVED_NAME  # the same in every project, so that a program moves to another by its key alone
SHELL_VARIABLE = "$CLAW_KEY"
FIRST_WORDS = "Say hello in five words."
OPENCLAW_CONTEXT = 32768  # said where no engine tells what it has
OPENCLAW_NEEDS = 13_000  # tokens of its first request, tools and workspace files included
FIRST_TOKENS = 32  # a small model that is not told when to stop talks on until its context is full


def base_url() -> str:
    """Return the public address without a trailing slash."""
    return str(settings.CLAW.public_base_url)


def first_calls(*, secret: str, context: int | None) -> dict[str, Any]:
    """Return what parts/snippets.html shows; `context`: the tokens that the engines have, None where none has told."""
    return {
        "curl": curl_chat(secret=secret),
        "python": openai_python(secret=secret),
        "openclaw": openclaw_config(secret=secret, context=context),
        "openclaw_warning": openclaw_warning(context),
    }


def curl_chat(*, secret: str) -> str:
    """Return a first model call."""
    body = {"model": MODEL, "max_tokens": FIRST_TOKENS, "messages": [{"role": "user", "content": FIRST_WORDS}]}
    return curl("POST", "/v1/chat/completions", body, secret=secret)


def curl(method: str, path: str, body: dict[str, Any] | None = None, *, secret: str = SHELL_VARIABLE) -> str:
    """Return a call of ours as a shell command."""
    key = f'"Authorization: Bearer {secret}"'
    lines = [
        f"curl -s {'' if method == 'GET' else f'-X {method} '}{shlex.quote(base_url() + path)}",
        f"  -H {key}",
    ]
    if body is not None:
        lines += ['  -H "Content-Type: application/json"', f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"]
    return " \\\n".join(lines)


def openai_python(*, secret: str) -> str:
    """Return the same call with the `openai` package."""
    return (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{base_url()}/v1", api_key="{secret}")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{MODEL}",\n'
        f"    max_tokens={FIRST_TOKENS},\n"
        f'    messages=[{{"role": "user", "content": "{FIRST_WORDS}"}}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )


def openclaw_warning(context: int | None) -> str:
    """Return what is wrong with OpenClaw on engines that have `context` tokens, "" when nothing is."""
    if context is None or context >= OPENCLAW_NEEDS:
        return ""
    return (
        f"The engines have a context of {context:,} tokens, and OpenClaw's first request alone is about "
        f"{OPENCLAW_NEEDS:,}: it will be refused. Serve a model with more (CLAW_MODEL, ENGINE_URLS)."
    )


def openclaw_config(*, secret: str, context: int | None) -> str:
    """Return what goes into OpenClaw's configuration; the two `compat` flags put its session id on the wire."""
    context = context or OPENCLAW_CONTEXT
    entry = {
        "id": MODEL,
        "name": "Claw",
        "contextWindow": context,
        "maxTokens": min(4096, context // 4),
        "compat": {"sendSessionAffinityHeaders": True, "supportsPromptCacheKey": True},
    }
    config = {
        "models": {"providers": {"claw": {"baseUrl": f"{base_url()}/v1", "apiKey": secret, "models": [entry]}}},
        "agents": {"defaults": {"model": f"claw/{MODEL}"}},
    }
    return json.dumps(config, indent=2, ensure_ascii=False)
