"""The probe: log-probs by which the engine that loads an adapter is checked against the trainer that made it."""

from typing import Any

import torch

from apps.core.contracts.training import Probe


def answer_probe(engine: Any, probe: Probe, *, device: torch.device) -> Probe:
    """Return `probe` with what the present weights hold most likely after each token but the last."""
    ids = torch.tensor([probe.token_ids[:-1]], device=device)  # (1, T - 1)
    engine.eval()
    with torch.no_grad():
        likely_ids, logprobs = engine.module.predict(ids)
    engine.train()
    return Probe(token_ids=probe.token_ids, likely_ids=tuple(likely_ids.tolist()), logprobs=tuple(logprobs.tolist()))
