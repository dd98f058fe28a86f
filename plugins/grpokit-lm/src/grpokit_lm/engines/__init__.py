"""Engines that write completions in place of this process: vLLM as a server, or on the same GPU.

The engine holds the base model. The adapter that trains is written to a folder, and loaded there under a new name after
each update. The engine states the log-prob of each token that it drew. Those are the sampler's, never the old ones of
the policy, for its kernels round in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from peft import LoraConfig

from grpokit import UsageError
from grpokit.registry.settings import read_settings
from grpokit_lm.engines.engine import Completing as Completing
from grpokit_lm.engines.engine import Engine as Engine
from grpokit_lm.engines.engine import named
from grpokit_lm.engines.offline import Offline, OfflineSettings
from grpokit_lm.engines.protocol import Host
from grpokit_lm.engines.server import Server
from grpokit_lm.engines.server import ServerSettings as ServerSettings
from grpokit_lm.engines.stated_logprobs import refuse_ignored_adapter as refuse_ignored_adapter
from grpokit_lm.engines.stated_logprobs import refuse_untempered as refuse_untempered
from grpokit_lm.loading import Loaded

EngineSettings: TypeAlias = ServerSettings | OfflineSettings

_EXAMPLE = "{url: 'http://gpu-2:8000'}"


def read_engine(given: Any) -> EngineSettings:
    """The settings of a mapping.

    Raises:
        UsageError: a key is unknown or missing, or a value is out of bounds.
    """
    if isinstance(given, Mapping) and given.get("offline"):
        return read_settings(OfflineSettings, given, key="engine", example="{offline: true}")
    if isinstance(given, Mapping) and "url" not in given:
        raise UsageError(f"engine needs the server's url, such as {_EXAMPLE}, or offline: true for vLLM on this GPU.")
    return read_settings(ServerSettings, given, key="engine", example=_EXAMPLE)


def start_engine(
    settings: EngineSettings,
    *,
    loaded: Loaded,
    adapter: LoraConfig,
    longest: int | None,
    top_k: int,
) -> Engine:
    """Find the server, or start vLLM.

    Args:
        settings: which.
        loaded: the policy's model.
        adapter: that trains.
        longest: the most tokens of a prompt with its completion; None if only the model bounds them.
        top_k: of the policy's training samples.

    Raises:
        UsageError: it does not have the model, does not take such an adapter, or does not start.
        RunError: no server answers.
    """
    if adapter.use_dora:
        raise UsageError("engine: vLLM takes no DoRA adapters. Leave out dora, or engine.")
    head: Any = loaded.model.get_output_embeddings()
    vocabulary = head.weight.shape[0]
    if isinstance(settings, ServerSettings):
        host: Host = Server(settings, base=loaded.name)
        return Engine(host, vocabulary=vocabulary, folder=settings.adapters)
    host = Offline(
        settings,
        loaded=loaded,
        rank=max([adapter.r, *(adapter.rank_pattern or {}).values()]),
        longest=longest,
        named=named(top_k),
    )
    return Engine(host, vocabulary=vocabulary)
