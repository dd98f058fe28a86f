"""Raises what is no Exception."""

from asyncio import CancelledError

raise CancelledError("no server")
