"""Stands in for vLLM where it is not installed: the same arguments and answers, around a tiny model.

It knows what grpokit uses of `LLM`, `SamplingParams` and `LoRARequest` of vLLM 0.10.2 to 0.33. Another argument is an
error, as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from engine_server import Served

from vllm.lora.request import LoRARequest


@dataclass(kw_only=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    max_tokens: int = 16
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.stop and not self.detokenize:
            raise ValueError("stop strings are only supported when detokenize is True.")


@dataclass
class Logprob:
    logprob: float


@dataclass
class CompletionOutput:
    token_ids: Sequence[int]
    logprobs: Sequence[dict[int, Logprob]]


@dataclass
class RequestOutput:
    outputs: Sequence[CompletionOutput]


class LLM:
    """The engines of a test are in `started`, with their arguments, and whether they sleep."""

    started: ClassVar[list[LLM]] = []

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        trust_remote_code: bool = False,
        quantization: str | None = None,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
        enforce_eager: bool = False,
        enable_lora: bool = False,
        max_lora_rank: int = 16,
        max_loras: int = 1,
        enable_sleep_mode: bool = False,
        logprobs_mode: str = "raw_logprobs",
        max_logprobs: int = 20,
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name != "self"}
        if gpu_memory_utilization > 0.95:
            raise ValueError("Free memory on device is less than desired GPU memory utilization.")
        assert enable_lora
        assert logprobs_mode == "processed_logprobs"
        self.served = Served()
        self.asleep, self.naps, self.called = False, 0, 0
        self.started_processes()
        LLM.started.append(self)

    def started_processes(self) -> None:
        """Where a test lets it start one."""

    def sleep(self, level: int = 1) -> None:
        assert self.arguments["enable_sleep_mode"]
        assert level == 1
        self.asleep = True

    def wake_up(self) -> None:
        self.asleep, self.naps = False, self.naps + 1

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[RequestOutput]:
        assert not self.asleep
        assert not use_tqdm
        assert lora_request is not None
        self.called += 1
        if lora_request.lora_name not in self.served.adapters:
            self.served.load(lora_request.lora_name, lora_request.lora_path)
        outputs = []
        for prompt, asked in zip(prompts, sampling_params, strict=True):
            if (asked.logprobs or 0) > self.arguments["max_logprobs"]:
                raise ValueError(f"Requested sample logprobs of {asked.logprobs}, which is greater than max allowed.")
            body = {**asdict(asked), "model": lora_request.lora_name, "prompt": prompt["prompt_token_ids"]}
            tokens, places = self.served.draw(body)
            named = [{token: Logprob(x) for token, x in place.items()} for place in places]
            outputs.append(RequestOutput([CompletionOutput(tokens, named)]))
        return outputs
