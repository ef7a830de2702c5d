"""The first call of a fresh vLLM server, so that it is no agent's.

It compiles and loads for up to a quarter of a minute; and where the CPU has AMX, a first prompt of one or two tokens
killed the engine (SIGILL), which after a longer one takes them.
"""

import http.client
import json
import sys

PROMPT = "A first call that is long enough. " * 8
PATIENCE_S = 60.0


def warm_up(port: int, model: str) -> None:
    """Have the server on a port of this host answer once. A failure is told on stderr: agents' calls will meet it."""
    body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 2, "temperature": 0})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        error = "" if answer.status == http.client.OK else f"{answer.status} {said[:500]!r}"
    except (OSError, http.client.HTTPException) as failure:
        error = repr(failure)
    finally:
        connection.close()
    if error:
        sys.stderr.write(f"worker.engine: the first call failed: {error}\n")
