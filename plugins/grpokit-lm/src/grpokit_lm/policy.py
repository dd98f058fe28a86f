"""hf-lm: a Hugging Face causal LM as a policy, with one decision per token of a completion.

The class puts together what the other modules provide: how a prompt becomes tokens (`prompts`), where a completion ends
(`stopping`), who writes and scores it (`paths`), what trains (`adapters`) and what it is held to (`references`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grpokit import (
    Decisions,
    PendingRollout,
    Policy,
    Prompt,
    Rollout,
    RunError,
    Seeds,
    UsageError,
    swapped,
)
from grpokit.policy import Work, layers
from grpokit.sampling import uniforms
from grpokit.settings import keywords_of
from grpokit.types import Ask
from grpokit_hf.models.adapters import add_adapter, inner
from grpokit_hf.models.checkpointing import recomputed
from grpokit_hf.models.dora import kept_norms
from grpokit_hf.models.teachers import bring_beside
from grpokit_hf.models.trained_adapter import check_adapter, continue_adapter
from grpokit_hf.models.weights import load_weights, tensors_of
from grpokit_hf.tokens.linear_layers import for_scoring
from grpokit_lm import saving
from grpokit_lm.completions import Completions
from grpokit_lm.engines import Engine, start_engine
from grpokit_lm.loading import Loaded, load_model
from grpokit_lm.paths import path_for
from grpokit_lm.prompts import PromptEncoder, end_tokens, with_template
from grpokit_lm.rollouts import Asked, Pending
from grpokit_lm.settings import CausalLMSettings
from grpokit_lm.stopping import Stops
from grpokit_lm.vision import freeze_unread, freeze_vision
from grpokit_lm.worlds.conversations import Conversations
from grpokit_lm.worlds.world import Worlds

_ASK = Ask()
_log = logging.getLogger(__name__)


class CausalLMPolicy(Policy):
    """A language model that answers prompts. It takes the fields of `CausalLMSettings` as keywords.

    Attributes:
        settings (CausalLMSettings): of the policy.
        model: what trains: the model, or the adapter around it.
        note (str): why the fast path is not used; empty if it is.
        version (int): of the weights, as `updated` counts them.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    @keywords_of(CausalLMSettings)
    def __init__(self, settings: CausalLMSettings) -> None:
        self.settings = settings
        self._worlds = None if settings.world is None else Worlds(settings.world)
        tools = None if self._worlds is None else self._worlds.tools()
        trained = settings.find_adapter()
        settings.find_teachers()

        def check(skeleton: Loaded) -> None:
            """With what needs no weights: it is made for a skeleton first, so that a mistake costs seconds."""
            _encoder_and_stops(skeleton, settings, tools)
            if trained is not None:
                check_adapter(skeleton.model, trained)
            elif settings.adapter is not None:
                add_adapter(skeleton.model, settings.adapter)

        loaded = load_model(settings.model, settings, check=check)
        self.encoder, self.stops = _encoder_and_stops(loaded, settings, tools)
        self.loaded = self.encoder.loaded
        network = self.loaded.model
        example = None if self.encoder.pictures is None else self.encoder.pictures.example
        every = None if self._worlds is None else 1  # the world is asked as soon as a turn ends
        self.path, self.note = path_for(network, fast=settings.fast, example=example, check_every=every)
        self.cut_by, self.packs = self.path.cut_by, self.path.packs
        if self.note:
            _warn_once(f"{self.note}; the plain path is used, which is slower.")
        if not settings.train_vision:
            freeze_vision(network)
        elif example is not None:
            freeze_unread(network, example)
        self._teachers = settings.teachers_of(
            network, lambda model, name: continue_adapter(model, settings.adapter_at(name))
        )
        self.model: Any = network
        if trained is not None:
            self.model = continue_adapter(network, trained)
        elif settings.adapter is not None:
            self.model = add_adapter(network, settings.adapter)
        self._reference = settings.reference_of(self.model)
        self.reference_moves = self._reference.moves
        self.reference_teaches = self._teachers is not None
        self._engine: Engine | None = None
        if settings.engine_settings is not None:
            self._engine = start_engine(
                settings.engine_settings,
                loaded=self.loaded,
                adapter=self.model.peft_config["default"],
                longest=settings.longest,
                top_k=settings.top_k,
            )
        _warn_of_begun(self.encoder)
        self.version = 0

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.loaded.model.get_input_embeddings().weight.device  # type: ignore[assignment]
        return device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read or are too long; of those that a world replaces, it looks at the first."""
        if self._teachers is not None:
            self._teachers.check(prompts)
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
                return self._pending(self._engine, asked, trains=not evaluate).result()
            draw, ends = (asked.sampler, self.stops) if talk is None else (talk.draw, talk)
            with kept_norms(self.path.model):
                written = self.path.write(
                    asked.readings,
                    group_size,
                    max_new_tokens=self.settings.max_new_tokens,
                    draw=draw,
                    ended=ends.ended,
                )
            return asked.rollout(written, *ends.lengths(written.tokens), kept=asked.sampler.kept())

    def begin(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds) -> PendingRollout | None:
        """Let the engine begin; without one, this process writes when `rollout` is called.

        Raises:
            UsageError: the engine sleeps while the policy learns.
        """
        if self._engine is None:
            return None
        if not self._engine.overlaps:
            raise UsageError(
                "engine: with sleep it gives its memory back while the run learns, and trainer: max_policy_lag lets "
                "it draw meanwhile. Leave one of them out."
            )
        asked = self._asked(prompts, group_size, seeds, evaluate=False)
        return self._pending(self._engine, asked, trains=True, ahead=True)

    def _pending(self, engine: Engine, asked: Asked, *, trains: bool, ahead: bool = False) -> Pending:
        return Pending(
            engine,
            asked,
            model=self.model,
            version=self.version,
            stops=self.stops,
            logprobs=self.logprobs,
            trains=trains,
            ahead=ahead,
        )

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
        most = self.settings.max_new_tokens
        sampler = self.settings.sampler(uniforms(seeds.row.to(device), most), evaluate=evaluate)
        if talk is not None:
            begun = talk.start(prompts, group_size, seeds.group.tolist())
            talk.draws(sampler, most)
        return Asked(
            prompts=prompts,
            readings=[self.encoder.encode(prompt).to(device) for prompt in begun],
            group_size=group_size,
            seeds=seeds,
            sampler=sampler,
            encoder=self.encoder,
            mask_truncated=self.settings.mask_truncated,
            conversations=talk,
        )

    @contextmanager
    def _conversations(self) -> Iterator[Conversations | None]:
        """With worlds, conversations that begin inside; their worlds are closed at the end."""
        if self._worlds is None:
            yield None
            return
        talk = Conversations(self.settings, self._worlds, encoder=self.encoder, stops=self.stops)
        try:
            yield talk
        except BaseException:
            with suppress(RunError):  # the first error counts
                talk.close()
            raise
        talk.close()

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored tokens again, in one pass, or in one for each teacher."""
        if self._teachers is not None and self._teachers.asked:
            return self._teachers.score(rollout, partial(self._scored_by, steps=steps, ask=ask))
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        temperature = float(rollout.trace.per_row["temperature"][0])
        completions = Completions.of(rollout, self.device, stop)
        recompute = self.settings.gradient_checkpointing and torch.is_grad_enabled()
        layers = for_scoring(self.path.model, casts=self.path.casts)
        with layers, recomputed(self.path.model) if recompute else nullcontext():
            return self.path.score(completions, start, width=stop - start, temperature=temperature, ask=ask)

    @contextmanager
    def during(self, work: Work) -> Iterator[None]:
        """Wake an engine that sleeps; keep frozen weights in the type of a mixed precision while scoring lasts."""
        engine = self._engine if work == "rollout" else None
        try:
            with nullcontext() if engine is None else engine.awake():
                yield
        finally:
            self.path.casts.clear()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the base without its adapter, a copy of what trains, or the teachers."""
        if self._teachers is not None:
            with self._teachers.inside():
                yield
            return
        with self._reference.model() as model, swapped(self.path, "model", inner(model)):
            yield

    def _scored_by(self, teacher: nn.Module, rollout: Rollout, *, steps: slice, ask: Ask) -> Decisions:
        bring_beside(teacher, self.device)
        with swapped(self.path, "model", inner(teacher)):
            return self.logprobs(rollout, steps, ask=ask)

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


def _encoder_and_stops(
    loaded: Loaded, settings: CausalLMSettings, tools: Sequence[Mapping[str, Any]] | None
) -> tuple[PromptEncoder, Stops]:
    """What reads prompts, and what ends completions.

    Raises:
        UsageError: the model cannot do what the settings say.
    """
    if settings.chat_template is not None:
        loaded = with_template(loaded, settings.chat_template)
    own = {**vars(settings), "loaded": loaded}
    if tools:
        own["template_options"] = {**(settings.template_options or {}), "tools": tools}
    encoder = PromptEncoder.of(own)
    if tools:
        encoder.check_tools()
    if settings.train_vision and encoder.pictures is None:
        raise UsageError(
            f"train_vision is true, and {type(loaded.model).__name__} has no vision tower, or no processor that reads "
            "pictures. Leave it out."
        )
    ends = () if settings.ignore_eos else end_tokens(loaded, loaded.model.generation_config, settings.stop_tokens)
    if settings.mask_truncated and not (ends or settings.stop):
        raise UsageError(
            "mask_truncated trains on completions that end by themselves, and nothing ends one here: no end token "
            "counts, and stop and stop_tokens name none. Name one, or leave mask_truncated out."
        )
    tokenizer: Any = loaded.tokenizer
    return encoder, Stops(ends, settings.stop, tokenizer.decode)


def _warn_of_begun(encoder: PromptEncoder) -> None:
    """Say that rewards do not see what the template begins an answer with, unless `prepend` decides that."""
    begun = encoder.begun
    if begun and encoder.prepend is None:
        _warn_once(
            f"The chat template begins each answer with {begun!r}. Completions follow it, so rewards do not "
            "see it, and one that wants it, such as a format, gives all of them 0. In policy set prepend: "
            f'{json.dumps(begun)} to put it before each completion, or prepend: "" to leave them as they are.'
        )


@cache
def _warn_once(words: str) -> None:
    """Log a warning, unless an equal policy did before in this process."""
    _log.warning(words)
