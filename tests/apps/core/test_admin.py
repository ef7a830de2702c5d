"""The admin pages open, and what services keep true cannot be edited there."""

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from apps.core.admin import ReadOnlyAdmin
from tests.factories.accounts import ApiKeyFactory, UserFactory
from tests.factories.feedback import LabelFactory
from tests.factories.registry import AliasFactory, EngineFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory

OURS = [model for model in admin.site._registry if model.__module__.startswith("apps.")]


@pytest.fixture
def staff(db: None, client: Client) -> Client:
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    for factory in (ApiKeyFactory, LabelFactory, AliasFactory, EngineFactory, ExchangeFactory, StepFactory):
        factory.create()
    return client


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.label)
def test_every_list_and_row_opens(staff: Client, model: type) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"  # type: ignore[attr-defined]
    assert staff.get(reverse(f"{name}_changelist")).status_code == 200
    row = model.objects.first()  # type: ignore[attr-defined]
    if row is not None:
        page = staff.get(reverse(f"{name}_change", args=[row.pk]))
        assert page.status_code == 200


@pytest.mark.parametrize(
    "model", [model for model in OURS if isinstance(admin.site._registry[model], ReadOnlyAdmin)], ids=str
)
def test_the_truth_cannot_be_edited(staff: Client, model: type) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"  # type: ignore[attr-defined]
    assert staff.get(reverse(f"{name}_add")).status_code == 403


def test_the_admin_is_for_staff(client: Client, db: None) -> None:
    client.force_login(UserFactory.create())
    assert client.get(reverse("admin:index")).status_code == 302
