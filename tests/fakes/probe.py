"""A trainer's answer to a probe, made up: the next token is always the likely one."""

from apps.core.contracts.training import Probe


def answer_probe(probe: Probe) -> Probe:
    """Return the probe with an answer for each token but the last; one without tokens is the trainer's to choose."""
    token_ids = probe.token_ids or (1, 2, 3)
    rest = token_ids[1:]
    return Probe(token_ids=token_ids, likely_ids=rest, logprobs=tuple(-0.5 for _ in rest))
