"""hf-lm: a Hugging Face causal LM as a policy, with one decision per token of a completion.

The class puts together what the other modules provide: how a prompt becomes tokens (`prompts`), where a completion ends
(`stopping`), who writes and scores it (`paths`), what trains (`adapters`) and what it is held to (`references`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpokit import (
    Decisions,
    PendingRollout,
    Policy,
    Prompt,
    Rollout,
    RunError,
    Sample,
    Seeds,
    Trace,
    UsageError,
    swapped,
)
from grpokit.policy import Work, layers
from grpokit.sampling import uniforms
from grpokit.types import Ask
from grpokit_hf.models.adapters import AdapterSettings, add_adapter, inner
from grpokit_hf.models.checkpointing import recomputed
from grpokit_hf.models.dora import kept_norms
from grpokit_hf.models.references import Average, Base, Reference, Twin, dtype_of_twin, is_copied
from grpokit_hf.models.trained_adapter import check_adapter, continue_adapter, find_adapter
from grpokit_hf.models.weights import load_weights, tensors_of
from grpokit_hf.tokens.group_decoding import Written
from grpokit_hf.tokens.linear_layers import for_scoring
from grpokit_hf.tokens.ragged import padded
from grpokit_hf.tokens.sampler import SamplerSettings
from grpokit_lm import saving
from grpokit_lm.completions import Completions
from grpokit_lm.engines import Engine, read_engine, start_engine
from grpokit_lm.loading import Loaded, Quantization, load_model
from grpokit_lm.paths import path_for
from grpokit_lm.pictures import Reading
from grpokit_lm.prompts import PromptEncoder, end_tokens, with_template
from grpokit_lm.rollouts import Asked, Pending
from grpokit_lm.stopping import Stops
from grpokit_lm.vision import freeze_unread, freeze_vision
from grpokit_lm.worlds.conversations import Conversations
from grpokit_lm.worlds.world import Errors, World, WorldSettings

_ASK = Ask()
_log = logging.getLogger(__name__)


class CausalLMPolicy(Policy):
    """A language model that answers prompts.

    Args:
        model: a hub id, a folder, a folder in a package such as "grpokit_lm:models/arithmetic", a GGUF file in one of
            these, or a model of transformers.
        tokenizer: None for the model's own; needed if `model` is an object.
        max_new_tokens: the most tokens of a completion, its end token included. With a world, all tokens behind the
            prompt count, those of the world too.
        temperature: of the training samples; log-probs are those of the tempered distribution.
        eval_temperature: of the evaluation samples; None for `temperature`, 0 for the most likely token.
        top_k: draw from the k most likely tokens only; 0 for all. Log-probs are those of the truncated distribution.
        top_p: draw from the most likely tokens that together have this probability; 1 for all.
        min_p: draw from tokens that have at least this share of the largest probability; 0 for all.
        eval_top_k: of the evaluation samples; None for `top_k`.
        eval_top_p: likewise; None for `top_p`.
        eval_min_p: likewise; None for `min_p`.
        stop: texts that end a completion, at the token that completes one.
        stop_tokens: further tokens that end a completion, as text or ids, beside the model's own end tokens.
        ignore_eos: no token ends a completion, so all have `max_new_tokens`; not with `stop` or `stop_tokens`.
        mask_truncated: a completion that did not end by itself is not trained on.
        system: a message that goes before each prompt's own.
        chat: whether prompts go through the chat template; None: where there is one.
        chat_template: another template than the tokenizer's own, as text or as the path of a file.
        template_options: further variables of the template.
        prepend: a text that rewards see before each completion, such as "<think>\\n" where the template has begun it.
        max_prompt_tokens: the most tokens of a prompt; None for what the context leaves.
        lora: settings of an adapter, such as {"r": 16, "alpha": 32}, or {"adapter": "folder"} to train one on; None
            trains the weights themselves.
        train_vision: whether full training reaches a vision tower too, and not the language model alone. What pictures
            do not pass through stays as it is.
        reference_dtype: of the frozen copy that full training needs for a KL; None for the model's own.
        reference_offload: keep that copy in the CPU's memory between two passes.
        reference_ema: let the reference follow the policy, such as {"decay": 0.99, "every": 1}; None: it stays. With
            `lora` it is an adapter of its own on the same base.
        world: what answers the model's turns, such as {"use": "guess-the-number"}; in Python also a class. None: a
            completion is one turn.
        max_turns: the most turns of the model with a world.
        world_errors: what an error in a world's `reply` does: "stop" the run, become the world's next "message", or
            "end" the episode.
        engine: what writes the completions in place of this process: a server, such as {"url": "http://gpu-2:8000"}, or
            vLLM on the same GPU, {"offline": True}; with `lora` only.
        gradient_checkpointing: keep less for the backward pass and compute it again.
        fast: read prompts once per group and pack completions without padding, where the model allows it.
        dtype: of the weights: "auto", "float32", "bfloat16" or "float16".
        quantization: "4bit" or "8bit", for the frozen base under an adapter.
        device: where to load the weights, or to move a model object: "cpu" or "cuda"; None loads on the GPU if there is
            one, and leaves an object where it is.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.
        trust_remote_code: whether code in the repository may run.

    Attributes:
        model: what trains: the model, or the adapter around it.
        note: why the fast path is not used; empty if it is.
        version: of the weights, as `updated` counts them.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        *,
        tokenizer: Any = None,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        eval_temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        eval_top_k: int | None = None,
        eval_top_p: float | None = None,
        eval_min_p: float | None = None,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[str | int] = (),
        ignore_eos: bool = False,
        mask_truncated: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_template: str | Path | None = None,
        template_options: Mapping[str, Any] | None = None,
        prepend: str | None = None,
        max_prompt_tokens: int | None = None,
        lora: Mapping[str, Any] | None = None,
        train_vision: bool = False,
        reference_dtype: str | None = None,
        reference_offload: bool = False,
        reference_ema: Mapping[str, Any] | None = None,
        world: str | Mapping[str, Any] | Callable[[], World] | None = None,
        max_turns: int = 10,
        world_errors: Errors = "stop",
        engine: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        fast: bool = True,
        dtype: str = "auto",
        quantization: Quantization | None = None,
        device: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        self.sampling = SamplerSettings(
            temperature=temperature,
            eval_temperature=eval_temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            eval_top_k=eval_top_k,
            eval_top_p=eval_top_p,
            eval_min_p=eval_min_p,
        )
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
        for key, ends in (("stop", stop), ("stop_tokens", stop_tokens)):
            if isinstance(ends, str) or not isinstance(ends, Sequence):
                remedy = f"Write [{ends!r}]" if isinstance(ends, (str, int)) else "Leave it out for none"
                raise UsageError(f"{key} must be a list, got {ends!r}. {remedy}.")
        if ignore_eos and (stop or stop_tokens):
            raise UsageError("ignore_eos lets no token end a completion; leave it out, or stop and stop_tokens.")
        if lora is not None and train_vision:
            raise UsageError("train_vision is for full training. With lora, name the tower's layers as targets.")
        self._worlds = None if world is None else WorldSettings(world=world, max_turns=max_turns, errors=world_errors)
        tools = None if self._worlds is None else self._worlds.tools()
        if tools:
            template_options = {**(template_options or {}), "tools": tools}
        if world is not None and engine is not None:
            raise UsageError("engine writes one turn, and with a world there are several. Leave one of them out.")
        engine_settings = None if engine is None else read_engine(engine)
        if engine_settings is not None:
            _check_for_engine(self.sampling, lora)
            engine_settings.check_here()
        adapter = None if lora is None else AdapterSettings.read(lora)
        trained = None
        if adapter is not None and adapter.adapter is not None:
            trained = find_adapter(adapter.adapter, revision=adapter.revision, local_files_only=local_files_only)
        average = None if reference_ema is None else Average.read(reference_ema)
        twin_dtype = dtype_of_twin(
            reference_dtype, offload=reference_offload, average=average, adapted=lora is not None
        )

        def encoder_and_stops(loaded: Loaded) -> tuple[PromptEncoder, Stops]:
            """What needs no weights: it is made for a skeleton first, so that a mistake costs seconds."""
            encoder = PromptEncoder(
                loaded=loaded if chat_template is None else with_template(loaded, chat_template),
                max_new_tokens=max_new_tokens,
                max_prompt_tokens=max_prompt_tokens,
                system=system,
                chat=chat,
                template_options=template_options,
            )
            if tools:
                encoder.check_tools()
            if train_vision and encoder.pictures is None:
                raise UsageError(
                    f"train_vision is true, and {type(loaded.model).__name__} has no vision tower, or no processor "
                    "that reads pictures. Leave it out."
                )
            ends = () if ignore_eos else end_tokens(loaded, loaded.model.generation_config, stop_tokens)
            if mask_truncated and not (ends or stop):
                raise UsageError(
                    "mask_truncated trains on completions that end by themselves, and nothing ends one here: no end "
                    "token counts, and stop and stop_tokens name none. Name one, or leave mask_truncated out."
                )
            return encoder, Stops(ends, stop, loaded.tokenizer.decode)

        def check(skeleton: Loaded) -> None:
            encoder_and_stops(skeleton)
            if trained is not None:
                check_adapter(skeleton.model, trained)
            elif adapter is not None:
                add_adapter(skeleton.model, adapter)

        loaded = load_model(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            trains_base=adapter is None,
            quantization=quantization,
            device=device,
            revision=revision,
            local_files_only=local_files_only,
            trust_remote_code=trust_remote_code,
            check=check,
        )
        self.encoder, self.stops = encoder_and_stops(loaded)
        self.loaded = self.encoder.loaded
        network = self.loaded.model
        example = self._example()
        every = None if self._worlds is None else 1  # the world is asked as soon as a turn ends
        self.path, self.note = path_for(network, fast=fast, example=example, check_every=every)
        if self.note:
            _warn_once(f"{self.note}; the plain path is used, which is slower.")
        if not train_vision:
            freeze_vision(network)
        elif example is not None:
            freeze_unread(network, example)
        self.model: Any = network
        if adapter is not None:
            self.model = add_adapter(network, adapter) if trained is None else continue_adapter(network, trained)
        self._reference: Reference = (
            Twin(self.model, dtype=twin_dtype, offload=reference_offload, average=average)
            if is_copied(adapter, average)
            else Base(self.model)
        )
        self.reference_moves = self._reference.moves
        self.max_new_tokens, self.mask_truncated = max_new_tokens, mask_truncated
        self._engine: Engine | None = None
        if engine_settings is not None:
            self._engine = start_engine(
                engine_settings,
                loaded=self.loaded,
                adapter=self.model.peft_config["default"],
                quantization=quantization,
                longest=None if max_prompt_tokens is None else max_prompt_tokens + max_new_tokens,
                top_k=top_k,
            )
        self.prepend = prepend or ""
        begun = self.encoder.begun
        if begun and prepend is None:
            _warn_once(
                f"The chat template begins each answer with {begun!r}. Completions go on behind it, so rewards do not "
                "see it, and one that wants it, such as a format, gives all of them 0. In policy set prepend: "
                f'{json.dumps(begun)} to put it before each completion, or prepend: "" to leave them as they are.'
            )
        self.version = 0
        self._recomputed = gradient_checkpointing

    def _example(self) -> Reading | None:
        """A prompt with a picture, if the model sees."""
        return None if self.encoder.pictures is None else self.encoder.pictures.example

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.loaded.model.get_input_embeddings().weight.device  # type: ignore[assignment]
        return device

    @property
    def cut_by(self) -> str:
        """Packed completions share their prompt; padded ones want equal lengths."""
        return self.path.cut_by

    @property
    def packs(self) -> bool:
        """Whether completions are scored without padding."""
        return self.path.packs

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read or are too long; of those that a world replaces, it looks at the first."""
        with self._conversations() as talk:
            if talk is not None and prompts:
                begun = talk.start(prompts[:1], 1, [0])
                prompts = prompts if begun[0] is prompts[0] else begun
        self.encoder.check(prompts)
        if self._engine is not None and any(prompt.image is not None for prompt in prompts):
            raise UsageError("engine writes completions of texts only, and a prompt has a picture. Leave engine out.")

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Write `group_size` completions per prompt, all together, or let the engine write them."""
        with self._conversations() as talk:
            asked = self._asked(prompts, group_size, seeds, evaluate=evaluate, talk=talk)
            if self._engine is not None:
                return Pending(self, self._engine, asked, trains=not evaluate).result()
            draw, ends = (asked.sampler, self.stops) if talk is None else (talk.draw, talk)
            with kept_norms(self.path.model):
                written = self.path.write(
                    asked.readings,
                    group_size,
                    max_new_tokens=self.max_new_tokens,
                    draw=draw,
                    ended=ends.ended,
                )
            return self.rollout_of(asked, written, *ends.lengths(written.tokens), kept=asked.sampler.kept())

    def begin(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds) -> PendingRollout | None:
        """Let the engine begin; without one, this process writes when `rollout` is called.

        Raises:
            UsageError: the engine sleeps while the policy learns.
        """
        if self._engine is None:
            return None
        if not self._engine.overlaps:
            raise UsageError(
                "engine: with sleep it gives its memory back while the run learns, and trainer: max_age lets it draw "
                "meanwhile. Leave one of them out."
            )
        asked = self._asked(prompts, group_size, seeds, evaluate=False)
        return Pending(self, self._engine, asked, trains=True, ahead=True)

    def _asked(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        seeds: Seeds,
        *,
        evaluate: bool,
        talk: Conversations | None = None,
    ) -> Asked:
        device, begun = self.device, prompts
        sampler = self.sampling.sampler(uniforms(seeds.row.to(device), self.max_new_tokens), evaluate=evaluate)
        if talk is not None:
            begun = talk.start(prompts, group_size, seeds.group.tolist())
            talk.draws(sampler, self.max_new_tokens)
        return Asked(
            prompts=prompts,
            readings=[self.encoder.encode(prompt).to(device) for prompt in begun],
            group_size=group_size,
            seeds=seeds,
            sampler=sampler,
            conversations=talk,
        )

    @contextmanager
    def _conversations(self) -> Iterator[Conversations | None]:
        """With worlds, conversations that begin inside; their worlds are closed at the end."""
        if self._worlds is None:
            yield None
            return
        talk = Conversations(self._worlds, encoder=self.encoder, stops=self.stops, text_of=self.text_of)
        try:
            yield talk
        except BaseException:
            with suppress(RunError):  # the first error counts
                talk.close()
            raise
        talk.close()

    def text_of(self, tokens: Sequence[int]) -> str:
        """What rewards see of a completion: all but the tokens that frame it (`PromptEncoder.frame`)."""
        frame = self.encoder.frame
        return self.prepend + str(self.loaded.tokenizer.decode([token for token in tokens if token not in frame]))

    def rollout_of(
        self,
        asked: Asked,
        written: Written,
        lengths: Sequence[int],
        ended: Sequence[bool],
        *,
        kept: Mapping[str, Tensor],
    ) -> Rollout:
        """What was asked for and written, as a rollout of these weights; `kept` as of `Sampler.kept`."""
        device, group_size, readings = self.device, asked.group_size, asked.readings
        column = torch.arange(written.tokens.shape[1])
        if asked.conversations is None:
            rows = zip(written.tokens.tolist(), lengths, strict=True)
            texts = [self.text_of(row[:length]) for row, length in rows]
            infos = [
                {"finish": "stop" if end else "length", "tokens": length}
                for length, end in zip(lengths, ended, strict=True)
            ]
            own = torch.ones(1, 1, dtype=torch.bool)
        else:
            texts, infos = asked.conversations.outputs(), asked.conversations.infos()
            own = asked.conversations.decided(len(column))
        groups = asked.seeds.group_ids.cpu().repeat_interleave(group_size)
        samples = [
            Sample(
                prompt=asked.prompts[row // group_size],
                output=text,
                group=int(groups[row]),
                info=info,
            )
            for row, (text, info) in enumerate(zip(texts, infos, strict=True))
        ]
        trained = [length if end or not self.mask_truncated else 0 for length, end in zip(lengths, ended, strict=True)]
        real, decided = (column < torch.tensor(counts)[:, None] for counts in (lengths, trained))
        real, mask = (x.to(device, non_blocking=True) for x in (real, decided & own))  # [B, T]
        ascending = [readings[i] for i in asked.seeds.group_ids.cpu().argsort().tolist()]
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=torch.where(mask, written.logprobs, 0.0)),
            mask=mask,
            max_decisions=self.max_new_tokens,
            trace=Trace(
                per_row={
                    "tokens": torch.where(real, written.tokens, 0),
                    "temperature": torch.full((len(samples),), asked.sampler.scored_at),
                    **kept,
                },
                per_group={
                    "prompt": padded([reading.tokens for reading in ascending]),
                    "prompt_length": torch.tensor([len(reading.tokens) for reading in ascending]),
                    **(self.encoder.pictures.entries(ascending) if self.encoder.pictures is not None else {}),
                },
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored tokens again, in one pass."""
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        temperature = float(rollout.trace.per_row["temperature"][0])
        completions = Completions.of(rollout, self.device, stop)
        recompute = self._recomputed and torch.is_grad_enabled()
        layers = for_scoring(self.path.model, casts=self.path.casts)
        with layers, recomputed(self.path.model) if recompute else nullcontext():
            return self.path.score(completions, start, width=stop - start, temperature=temperature, ask=ask)

    @contextmanager
    def during(self, work: Work) -> Iterator[None]:
        """Wake an engine that sleeps; keep frozen weights in the type of a mixed precision while scoring lasts."""
        draws = self._engine is not None and work == "rollout"
        try:
            with self._engine.awake() if draws else nullcontext():
                yield
        finally:
            self.path.casts.clear()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the base without its adapter, or the copy that full training is held to."""
        with self._reference.model() as model, swapped(self.path, "model", inner(model)):
            yield

    def updated(self, version: int) -> None:
        """Let a reference that moves follow; an engine gets the weights before it draws."""
        self._reference.updated(version)
        self.version = version

    def modules(self) -> Mapping[str, nn.Module]:
        """The model, with its adapter."""
        return {"model": self.model}

    def blocks(self) -> Iterable[nn.Module]:
        """The layers of the language model; a vision tower's are called for some rows only."""
        return layers(inner(self.model).get_decoder())

    def state_dict(self) -> dict[str, Any]:
        """What trains: the adapter, or the model; and a reference that moves."""
        return {**tensors_of(self.model), **self._reference.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load what `state_dict` returned."""
        self.path.casts.clear()
        if self._engine is not None:
            self._engine.forget()
        self._reference.load_state_dict(state)
        load_weights(self.model, state)

    def export(self, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
        """Write a folder that plain peft or transformers loads; returns facts for its model card."""
        return saving.export(self.model, self.loaded, Path(folder), merge=merge)


def _check_for_engine(sampling: SamplerSettings, lora: Mapping[str, Any] | None) -> None:
    """Refuse what an engine cannot give.

    Raises:
        UsageError: with what to change.
    """
    if lora is None:
        raise UsageError("engine needs lora: it takes new adapters while it runs, but no new weights.")
    if not sampling.top_k and (sampling.top_p < 1 or sampling.min_p):
        raise UsageError(
            "engine names the likeliest tokens, from which training learns what top_p and min_p have left. It must "
            "know how many: add top_k, such as 50, or leave both out; eval_top_p and eval_min_p may stay."
        )


@cache
def _warn_once(words: str) -> None:
    """Log a warning, unless an equal policy did before in this process."""
    _log.warning(words)
