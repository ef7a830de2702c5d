"""Tests that import torch, run by the ML environment's own pytest."""
