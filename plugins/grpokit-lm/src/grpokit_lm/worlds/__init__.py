"""Worlds that a language model talks to: the contract, the conversations of a rollout, and two worlds that ship."""
