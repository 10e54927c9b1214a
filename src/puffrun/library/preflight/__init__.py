"""Refuses ranks that would train different things, before the first step and before each."""
