"""Tokens by which the trainer can tell whether its tokenizer is that of the engines which sampled."""

from apps.core.contracts.training import TokenText
from apps.registry.models import Policy
from apps.registry.token_texts import read_token_texts
from apps.registry.vocabulary import read_vocabulary_size

N_TOKENS = 16


def sample_token_texts(policy: Policy) -> tuple[TokenText, ...]:
    """Return tokens from all over the vocabulary, as an engine has them; none where none can be asked."""
    size = read_vocabulary_size(policy)
    if size is None or size < 2 * N_TOKENS:
        return ()
    token_ids = [size * (2 * number + 1) // (2 * N_TOKENS) for number in range(N_TOKENS)]
    texts = read_token_texts(base_model=policy.base_model, token_ids=token_ids)
    return tuple(TokenText(token_id=token_id, text=text) for token_id, text in zip(token_ids, texts, strict=False))
