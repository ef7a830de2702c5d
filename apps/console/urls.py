"""Addresses of the console's pages."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
