"""glm-image-ar: GLM-Image's autoregressive half as a policy, with one decision per visual token.

The half writes the tokens of a draft and of a large grid (`grids`), behind a prompt (`prompts`). The pipeline's own
diffusion decoder makes the picture of exactly these tokens (`decoder`), and the rewards see that. The policy's
distribution is the model's over the codes of a picture: end tokens and special ones are impossible inside a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from grpokit import Ask, Decisions, Policy, Prompt, Rollout, Sample, Seeds, Trace, swapped
from grpokit.policy import Work, layers
from grpokit.sampling import uniforms
from grpokit.settings import keywords_of
from grpokit_glm_image import saving
from grpokit_glm_image.decoder import Decoder
from grpokit_glm_image.painter import Painter
from grpokit_glm_image.pipeline import Prepared, prepare
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import WritingSettings
from grpokit_glm_image.token_writer import Writer
from grpokit_hf.models.adapters import add_adapter, inner
from grpokit_hf.models.checkpointing import recomputed
from grpokit_hf.models.quantized import check_trainable
from grpokit_hf.models.teachers import bring_beside
from grpokit_hf.models.trained_adapter import TrainedAdapter, check_adapter, continue_adapter
from grpokit_hf.models.weights import load_weights, tensors_of
from grpokit_hf.tokens.fused_head import FusedHead
from grpokit_hf.tokens.linear_layers import Casts, for_scoring
from grpokit_hf.tokens.packed_attention import install
from grpokit_hf.tokens.packing import Completions, score
from grpokit_hf.tokens.ragged import padded

_ASK = Ask()


class GlmImageAR(Policy):
    """The half of GLM-Image that writes visual tokens. Its arguments are those of `WritingSettings`.

    Attributes:
        settings (WritingSettings): of the policy.
        model: what trains: the autoregressive half, or the adapter around it.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    packs = True

    @keywords_of(WritingSettings)
    def __init__(self, settings: WritingSettings) -> None:
        self.settings = settings
        trained = settings.find_adapter()
        settings.find_teachers()
        prepared = prepare(settings, writer_trains=settings.trains_base)
        self.encoder = prepared.encoder(settings.resolution, edits=settings.edits)
        _check_adapter(settings, trained, prepared)
        self.loaded = prepared.load()
        network: Any = self.loaded.ar
        install(network.model.language_model)
        self.target = self.encoder.target
        self._trained = self.target.part(settings.train_tokens)
        self.decoder = Decoder(Painter(self.loaded.pipeline))
        self._evaluating: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._teachers = settings.teachers_of(
            network, lambda model, name: continue_adapter(model, settings.adapter_at(name))
        )
        self.model: Any = _learner(network, settings, trained, name=self.loaded.name)
        self._reference = settings.reference_of(self.model)
        self.reference_moves = settings.reference is not None
        self.reference_teaches = self._teachers is not None
        self._ar: Any = network
        self.writer = Writer(network, self.encoder, settings.sampling, merged=settings.merge_adapter)
        self._head, self._casts = FusedHead(), Casts()

    def paint_with(self, painter: Painter, *, evaluating: Callable[[], AbstractContextManager[Any]]) -> None:
        """Let a half that another policy trains make the pictures.

        Args:
            painter: with what that policy has learnt.
            evaluating: a context for pictures of evaluations, such as one with an average of the weights.
        """
        self.decoder, self._evaluating = Decoder(painter), evaluating

    @property
    def device(self) -> torch.device:
        """Where the autoregressive half is."""
        return self.writer.device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read or are too long, or that name a teacher that is not there."""
        self.encoder.check(prompts)
        if self._teachers is not None:
            self._teachers.check(prompts)

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Write the tokens of `group_size` pictures per prompt, all together, and decode them prompt by prompt."""
        self.loaded.turns.let_write()
        device = self.device
        chances = uniforms(seeds.row.to(device), self.target.count)
        if self._trained.start and not evaluate:
            draft = uniforms(seeds.group.to(device), self._trained.start)
            chances[:, : self._trained.start] = draft.repeat_interleave(group_size, 0)
        page = self.writer.write(prompts, group_size, chances, evaluate=evaluate)
        written = page.written
        pictures = self._decode(written.tokens, prompts, seeds, evaluate=evaluate)
        groups = seeds.group_ids.cpu().repeat_interleave(group_size)
        samples = [
            Sample(prompt=prompts[row // group_size], output=picture, group=int(groups[row]))
            for row, picture in enumerate(pictures)
        ]
        decided = written.logprobs[:, self._trained]
        order = seeds.group_ids.cpu().argsort()
        ascending = [page.readings[i] for i in order.tolist()]
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=decided),
            mask=torch.ones_like(decided, dtype=torch.bool),
            max_decisions=decided.shape[1],
            trace=Trace(
                per_row={
                    "tokens": written.tokens,
                    "temperature": torch.full((len(samples),), page.sampler.scored_at),
                    "seed": seeds.row.cpu(),
                    **page.sampler.kept(),
                },
                per_group={
                    "prompt": padded([reading.tokens for reading in ascending]),
                    "prompt_length": torch.tensor([len(reading.tokens) for reading in ascending]),
                    "positions": padded([reading.positions.T for reading in ascending]),
                    "seed": seeds.group.cpu()[order],
                },
            ),
        )

    def decoded(self, rollout: Rollout, *, evaluate: bool = False) -> list[Sample]:
        """Make the pictures of a rollout's stored tokens again: its samples, with the same noise.

        Args:
            rollout: any rows of this policy's.
            evaluate: decode as in evaluation; else as in training.
        """
        samples = list(rollout.samples)
        for place, group in enumerate(sorted(set(rollout.groups.tolist()))):
            rows = (rollout.groups == group).nonzero()[:, 0]
            tokens, prompt = rollout.trace.per_row["tokens"], samples[int(rows[0])].prompt
            seeds = Seeds(
                row=rollout.trace.per_row["seed"].cpu()[rows],
                group=rollout.trace.per_group["seed"].cpu()[place : place + 1],
                group_ids=torch.tensor([group]),
            )
            pictures = self._decode(tokens[rows.to(tokens.device)], [prompt], seeds, evaluate=evaluate)
            for row, picture in zip(rows.tolist(), pictures, strict=True):
                samples[row] = replace(samples[row], output=picture)
        return samples

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored tokens again, in one pass, or in one for each teacher: [b, t]."""
        self.loaded.turns.let_write()
        if self._teachers is not None and self._teachers.asked:
            return self._teachers.score(rollout, partial(self._scored_by, steps=steps, ask=ask))
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        before = self._trained.start  # tokens that are written before the first decision
        decoder, device = self._ar.model.language_model, self.device
        recompute = self.settings.gradient_checkpointing and torch.is_grad_enabled()
        with for_scoring(decoder, casts=self._casts), recomputed(decoder) if recompute else nullcontext():
            return score(
                _completions(rollout, device, before=before, stop=stop),
                before + start,
                width=stop - start,
                decoder=decoder,
                layer=self._ar.lm_head,
                head=self._head,
                casts=self._casts,
                ask=ask,
                scale=1 / float(rollout.trace.per_row["temperature"][0]),
                forbidden=self.writer.forbidden.to(device, non_blocking=True),
            )

    @contextmanager
    def during(self, work: Work) -> Iterator[None]:
        """Keep frozen weights in the type of a mixed precision as long as a stretch of scoring lasts."""
        try:
            yield
        finally:
            self._casts.clear()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the base without its adapter, a copy of what trains, or the teachers."""
        self.loaded.turns.let_write()
        if self._teachers is not None:
            with self._teachers.inside():
                yield
            return
        with self._reference.model() as model, swapped(self, "_ar", inner(model)):
            yield

    def _scored_by(self, teacher: nn.Module, rollout: Rollout, *, steps: slice, ask: Ask) -> Decisions:
        bring_beside(teacher, self.device)
        with swapped(self, "_ar", inner(teacher)):
            return self.logprobs(rollout, steps, ask=ask)

    def updated(self, version: int) -> None:
        """Tell the reference, which may only be copied from weights that have not changed."""
        self._reference.updated(version)
        self.writer.changes += 1

    def modules(self) -> Mapping[str, nn.Module]:
        """The autoregressive half, with its adapter, on its device."""
        self.loaded.turns.let_write()
        return {"model": self.model}

    def blocks(self) -> Iterable[nn.Module]:
        """The layers that write visual tokens; those that read source pictures are called for some rows only."""
        return layers(self._ar.model.language_model)

    def state_dict(self) -> dict[str, Any]:
        """What trains: the adapter, or the autoregressive half; and a reference that moves."""
        return {**tensors_of(self.model), **self._reference.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load what `state_dict` returned."""
        self._casts.clear()
        self.writer.changes += 1
        self._reference.load_state_dict(state)
        load_weights(self.model, state)

    def export(self, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
        """Write a folder that plain diffusers and peft load; returns facts for its model card."""
        return saving.export(
            self.model, self.loaded, Path(folder), size=self.encoder.size, edits=self.encoder.edits, merge=merge
        )

    def _decode(self, tokens: Tensor, prompts: Sequence[Prompt], seeds: Seeds, *, evaluate: bool) -> list[Image | None]:
        """The pictures of tokens [B, T]."""
        sources = [self.writer.sources(prompt) for prompt in prompts]
        settings = self.settings.eval_decoding if evaluate else self.settings.decoding
        self.loaded.turns.let_paint()
        with self._evaluating() if evaluate else nullcontext():
            return self.decoder.pictures(
                tokens, prompts, seeds=seeds, settings=settings, target=self.target, source_codes=sources
            )


def reader(parameters: Mapping[str, Any]) -> PromptEncoder:
    """What reads prompts, from all parameters of `GlmImageAR`, without the model's weights.

    Raises:
        UsageError: as of `GlmImageAR`, where that is known without weights.
    """
    settings = WritingSettings(**parameters)
    prepared = prepare(settings, writer_trains=settings.trains_base)
    return prepared.encoder(settings.resolution, edits=settings.edits)


def _check_adapter(settings: WritingSettings, trained: TrainedAdapter | None, prepared: Prepared) -> None:
    """Refuse an adapter that does not fit the model, before weights are read.

    Raises:
        UsageError: as it says.
    """
    if trained is not None:
        check_adapter(prepared.skeleton(), trained)
    elif settings.adapter is not None:
        add_adapter(prepared.skeleton(), settings.adapter)


def _learner(network: Any, settings: WritingSettings, trained: TrainedAdapter | None, *, name: str) -> Any:
    """What trains of the autoregressive half: its language model in full, or an adapter around it."""
    network.requires_grad_(False)
    if trained is not None:
        return continue_adapter(network, trained)
    if settings.adapter is not None:
        return add_adapter(network, settings.adapter)
    check_trainable(name, network)
    network.model.language_model.requires_grad_(True)
    network.lm_head.requires_grad_(True)  # and no vision tower
    return network


def _completions(rollout: Rollout, device: torch.device, *, before: int, stop: int) -> Completions:
    """The tokens of a rollout's rows up to the decision `stop`, with those `before` the first decision."""
    row, group = rollout.trace.per_row, rollout.trace.per_group
    end, kept = before + stop, row.get("kept")
    return Completions(
        prompts=group["prompt"].to(device, non_blocking=True),
        prompt_lengths=group["prompt_length"].tolist(),
        tokens=row["tokens"][:, :end].to(device),
        lengths=[end] * rollout.rows,
        groups=rollout.group_index.tolist(),
        kept=None if kept is None else kept[:, :end].to(device),
        positions=list(group["positions"].cpu().transpose(1, 2)),
    )
