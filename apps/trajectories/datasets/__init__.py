"""Datasets, their snapshots, and how trajectories leave the pool and come in as files."""
