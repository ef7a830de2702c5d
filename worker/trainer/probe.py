"""The probe: log-probs by which the engine that loads an adapter is checked against the trainer that made it."""

from typing import Any

import torch

from apps.core.contracts.training import Probe


def answer_probe(engine: Any, probe: Probe, *, device: torch.device) -> Probe:
    """Return `probe` with the log-prob (nats, temperature 1) of each token after the first, by the present weights."""
    ids = torch.tensor([probe.token_ids], device=device)  # (1, T)
    predicts = torch.ones_like(ids, dtype=torch.bool)
    predicts[:, -1] = False
    targets = ids[0, 1:]  # (T - 1,)
    engine.eval()
    with torch.no_grad():
        logprobs, _ = engine(ids[:, :0], ids, predicts, targets, torch.ones(len(targets), device=device))
    engine.train()
    return Probe(token_ids=probe.token_ids, logprobs=tuple(logprobs.tolist()))
