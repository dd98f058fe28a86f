"""Needs an engine."""

import a_missing_engine

score = a_missing_engine.score
