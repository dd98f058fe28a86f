"""vLLM's offline engine: `vllm.LLM`, on the same GPU as the policy.

Its arguments and methods are those of vLLM 0.10.2 to 0.33: https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm/,
https://docs.vllm.ai/en/latest/features/lora/ and https://docs.vllm.ai/en/latest/features/sleep_mode/.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, resource_tracker
from threading import Lock, Thread
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le

from grpokit import RunError, UsageError
from grpokit.errors import one_line
from grpokit.settings import Count, Settings
from grpokit_hf.models.sources import cached, local
from grpokit_lm.engines.protocol import Adapter, Answer, Row
from grpokit_lm.loading import Loaded

_GRACE = 2.0  # seconds in which vLLM may say itself what has happened
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's max_lora_rank is one of them
_OWN = {
    "model": "use engine: model",
    "gpu_memory_utilization": "use engine: gpu_memory_utilization",
    "max_model_len": "use engine: max_model_len",
    "enable_sleep_mode": "use engine: sleep",
    "enable_lora": "it is always on",
    "logprobs_mode": "it is always processed_logprobs",
}


@dataclass(frozen=True, kw_only=True)
class OfflineSettings(Settings):
    """The keys of `engine` with `offline: true`.

    Attributes:
        offline: true.
        model: what vLLM loads; None for the policy's model.
        gpu_memory_utilization: the share of the GPU's memory that vLLM takes for weights and for keys and values.
        max_model_len: the most tokens of a prompt with its completion; None for what the policy allows.
        sleep: give the GPU's memory back while the run learns; the weights wait in the CPU's.
        options: further arguments of `vllm.LLM`.
    """

    offline: Literal[True]
    model: str | None = None
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)] = 0.3
    max_model_len: Count | None = None
    sleep: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def check_together(self) -> None:
        """Refuse arguments that have a key of their own.

        Raises:
            UsageError: with the key.
        """
        taken = [name for name in _OWN if name in self.options]
        if taken:
            raise UsageError(f"engine: options may not have {taken[0]}; {_OWN[taken[0]]}.")

    def check_here(self) -> None:
        """Refuse to start where it cannot, before the policy's weights are read.

        Raises:
            UsageError: vLLM is not installed, or there are several processes.
        """
        if importlib.util.find_spec("vllm") is None:
            raise UsageError("engine: offline needs vLLM, which is not installed: pip install vllm")
        if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
            raise UsageError(
                "engine: offline is for a run in one process. Start a server for each process, and name all of them: "
                "engine: {url: [...]}."
            )


class Offline:
    """Speaks with `vllm.LLM`.

    Args:
        settings: how to start it.
        loaded: the policy's model.
        rank: of the largest adapter.
        longest: the most tokens of a prompt with its completion; None if only the model bounds them.
        named: how many log-probs it must be able to state for a token.

    Raises:
        UsageError: vLLM does not start.
    """

    name = "engine in this process"

    def __init__(
        self,
        settings: OfflineSettings,
        *,
        loaded: Loaded,
        rank: int,
        longest: int | None,
        named: int,
    ) -> None:
        fitting = [bound for bound in _RANKS if bound >= rank]
        if not fitting:
            raise UsageError(f"engine: vLLM takes adapters of r up to {_RANKS[-1]}, and lora has r {rank}.")
        reading = loaded.reading
        if reading.quantization == "8bit":
            raise UsageError("engine: vLLM does not quantise to 8 bits as it loads. Use quantization: 4bit, or none.")
        arguments = {
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
            "tokenizer": _read_from(loaded.tokenizer.name_or_path, loaded, marker="tokenizer_config.json") or None,
            "revision": None if settings.model else reading.revision,  # where a hub's name is left
            "tokenizer_revision": reading.revision,
            "trust_remote_code": reading.trust_remote_code,
            "quantization": "bitsandbytes" if reading.quantization else None,
            "max_lora_rank": fitting[0],
            "max_loras": 1,
            "max_logprobs": max(20, named),
            **settings.options,
            "model": str(local(settings.model) or settings.model)
            if settings.model
            else _read_from(loaded.name, loaded, marker="config.json"),
            "enable_lora": True,
            "logprobs_mode": "processed_logprobs",
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "max_model_len": settings.max_model_len or longest,
            "enable_sleep_mode": settings.sleep,
        }
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            import vllm

            others = set(multiprocessing.active_children())
            with _without_ctrl_c():
                self._llm = vllm.LLM(**arguments)
            self._processes = set(multiprocessing.active_children()) - others
        except Exception as error:  # of any kind: it starts processes and compiles kernels
            raise UsageError(
                f"engine: vLLM does not start: {one_line(error)}. What it printed above may say more. "
                "gpu_memory_utilization is its share of the GPU's memory, beside the policy."
            ) from error
        self._sleeps, self.overlaps, self._wakers = settings.sleep, not settings.sleep, 0
        self._one_at_a_time = Lock()
        if self._sleeps:
            self._llm.sleep(level=1)

    def load(self, adapter: Adapter) -> None:
        """vLLM reads it with the first request."""

    def unload(self, adapter: Adapter) -> None:
        """The next adapter takes its place, for vLLM keeps one."""

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Inside, the engine has its memory; after the outermost one it sleeps again, unless something failed there.

        Raises:
            RunError: it cannot get its memory, or cannot give it back.
        """
        self._wakers += 1
        outermost = self._wakers == 1
        try:
            if self._sleeps and outermost:
                torch.cuda.empty_cache()  # what PyTorch holds in reserve would be missing
                self._does("woke up", self._llm.wake_up)
            yield
            if self._sleeps and outermost:
                self._does("went to sleep", partial(self._llm.sleep, level=1))
        finally:
            self._wakers -= 1

    def begin(
        self, adapter: Adapter, rows: Sequence[Row], options: Mapping[str, Any]
    ) -> Sequence[Future[Sequence[Answer]]]:
        """Draw all rows in one call, which batches them."""
        drawn: Future[Sequence[Answer]] = Future()

        def work() -> None:
            with self._one_at_a_time:
                if not drawn.set_running_or_notify_cancel():
                    return
                with suppress(InvalidStateError):  # `watch` has given up
                    try:
                        drawn.set_result(self._draw(adapter, rows, options))
                    except BaseException as error:
                        drawn.set_exception(error)

        for task in (work, partial(self._watch, drawn)):
            Thread(target=task, name="vllm", daemon=True).start()  # a run that is aborted does not wait for them
        return [drawn]

    def _watch(self, drawn: Future[Sequence[Answer]]) -> None:
        """End the wait for completions if a process of vLLM ends; vLLM 0.32 itself would wait for ever."""
        while self._processes and not drawn.done():
            if connection.wait([process.sentinel for process in self._processes], timeout=1.0):
                time.sleep(_GRACE)
                codes = [process.exitcode for process in self._processes if process.exitcode is not None]
                with suppress(InvalidStateError):
                    drawn.set_exception(
                        RunError(
                            f"A process of vLLM ended while it drew, with exit code {codes[0]}. What it printed above "
                            "may say more. Continue a run that had begun with --resume."
                        )
                    )

    def _draw(self, adapter: Adapter, rows: Sequence[Row], options: Mapping[str, Any]) -> Sequence[Answer]:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        def generate() -> Any:
            return self._llm.generate(
                [{"prompt_token_ids": list(row.prompt)} for row in rows],
                [SamplingParams(**options, seed=row.seed, detokenize=bool(options["stop"])) for row in rows],
                lora_request=LoRARequest(adapter.name, adapter.number, str(adapter.folder)),
                use_tqdm=False,
            )

        with self.awake():
            return [_answer(output.outputs[0]) for output in self._does("drew", generate)]

    def _does(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # of any kind, as when it starts
            raise RunError(
                f"vLLM failed while it {what}: {one_line(error)}. What it printed above may say more. Continue a run "
                "that had begun with --resume."
            ) from error


def _read_from(name: str, loaded: Loaded, *, marker: str) -> str:
    """The folder from which the policy has read a model or a tokenizer: vLLM reads the same files, and asks no hub.

    Args:
        name: a hub id or a folder.
        loaded: what the policy has read by its name, or was given as an object; of an object only the name is known.
        marker: a file that the folder has.
    """
    folder = local(name)
    if folder is None and loaded.settings is not None:
        folder = cached(name, marker=marker, revision=loaded.settings.revision)
    return name if folder is None else str(folder)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that begin inside get no Ctrl-C: the run answers it, and still needs them to end its step.

    This process gets it when all have begun.
    """
    resource_tracker.ensure_running()  # its start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(completion: Any) -> Answer:
    """What vLLM says of a completion: its log-probs are a mapping for each token, the drawn one included."""
    places = [{token: stated.logprob for token, stated in place.items()} for place in completion.logprobs]
    tokens = list(completion.token_ids)
    return Answer(
        tokens=tokens,
        logprobs=[place[token] for place, token in zip(places, tokens, strict=True)],
        likeliest=places,
    )
