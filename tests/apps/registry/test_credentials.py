"""Credentials are unreadable without the signing key."""

import pytest
from pytest_django.fixtures import Settings

from apps.registry.credentials import CredentialUnreadable, seal_credential, unseal_credential


def test_what_was_sealed_can_be_opened_and_does_not_show() -> None:
    sealed = seal_credential("sk-very-secret")
    assert "secret" not in sealed
    assert unseal_credential(sealed) == "sk-very-secret"
    assert seal_credential("sk-very-secret") != sealed  # equal credentials do not look equal
    assert seal_credential("") == unseal_credential("") == ""


def test_another_signing_key_cannot_open_it_and_says_what_to_do(settings: Settings) -> None:
    sealed = seal_credential("sk-very-secret")
    settings.SECRET_KEY = "another key than before"
    with pytest.raises(CredentialUnreadable, match="CLAW_SECRET_KEY"):
        unseal_credential(sealed)


def test_a_row_that_was_tampered_with_is_not_opened() -> None:
    with pytest.raises(CredentialUnreadable):
        unseal_credential(seal_credential("sk-very-secret")[:-4] + "AAA=")
