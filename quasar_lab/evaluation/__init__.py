"""Measurements: how long a pass takes, what a verifier gains on whole answers, how far it is from BF16."""
