"""Which requests are for Claw-R1's paths. Knows addresses only.

Its clients add `/v1` to the base URL once, twice or not at all, depending on their age.
"""

import re

from starlette.types import Scope

_FLAT = frozenset({"/init_trajectory", "/register_trajectory", "/submit_steps", "/generate", "/compute_reward"})
_COMPLETE = "/complete_trajectory/"
_BELOW_BASE = re.compile(
    r"/(?P<trajectory>[^/]+)/(?P<prompt>[^/]+)(?:/v1){0,2}"
    r"/(?P<verb>chat/completions|register_trajectory|complete_trajectory|trajectory/complete)"
)
_OURS = frozenset({"api", "t", "v1"})  # first parts of the platform's own addresses


def find_door_scope(scope: Scope, *, is_open: bool) -> Scope | None:
    """Return the scope with the path in its full spelling, None when the request is not for this door."""
    if not is_open:
        return None
    path: str = scope["path"]
    if path in _FLAT or path.startswith(_COMPLETE):
        return scope
    found = _BELOW_BASE.fullmatch(path)
    if found is None or found["trajectory"] in _OURS:
        return None
    inner = f"/{found['trajectory']}/{found['prompt']}/v1/{found['verb']}"
    return {**scope, "path": inner, "raw_path": inner.encode("utf-8", "surrogatepass")}
