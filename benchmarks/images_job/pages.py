"""What one writes on a page over the stock classes: draw, log-probs by full forward passes, a clipped update.

`Tokens` is for GLM-Image's autoregressive half. With one sample at a time it does what the public script GLM-Image-RL
does; with all of them in one call of `generate` it is the best that the stock classes give. `Flow` follows the training
loop of Flow-GRPO: a noisy step with its log-prob, and a backward pass for each step that trains.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_job.clock import Clock
from lm_job.plain import advantages, loss
from peft import LoraConfig, get_peft_model
from PIL.Image import Image
from torch import Tensor

from images_job import models
from images_job.job import Job
from images_job.with_grpokit import brightness

WRITER_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]
PAINTER_LAYERS = ["to_q", "to_k", "to_v", "to_out.0"]


class Page:
    """What both pages share: the adapter, its optimizer and the update."""

    def __init__(self, job: Job, clock: Clock, base: Any, layers: Sequence[str]) -> None:
        self.job, self.clock = job, clock
        base.requires_grad_(False)
        config = LoraConfig(r=job.rank, lora_alpha=2 * job.rank, target_modules=list(layers))
        self.model: Any = get_peft_model(base, config).eval()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=job.learning_rate, weight_decay=0.0)

    def update(self) -> None:
        """Make an optimizer step."""
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True, kw_only=True)
class Written:
    """Rows of prompts with their visual tokens behind them.

    Attributes:
        ids: [b, S + T].
        mask: [b, S + T - 1]; 0 where a prompt is padded.
        positions: [3, b, S + T - 1].
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor

    def rows(self, chosen: slice) -> Written:
        """Some of them."""
        return Written(ids=self.ids[chosen], mask=self.mask[chosen], positions=self.positions[:, chosen])


class Tokens(Page):
    """GLM-Image's autoregressive half.

    Args:
        job: the job.
        clock: measures phases.
        at_once: samples in one call of `generate`.
    """

    def __init__(self, job: Job, clock: Clock, *, at_once: int) -> None:
        self.pipe = models.glm_image(job)
        self.pipe.set_progress_bar_config(disable=True)
        self.ar = self.pipe.vision_language_encoder
        super().__init__(job, clock, self.ar, WRITER_LAYERS)
        self.at_once = at_once
        side = job.pixels // 32
        self.large, self.count = side * side, 16 * 16 + side * side

    def step(self, prompts: int, group: int) -> dict[str, float]:
        """Draw, score and learn; counts what it did."""
        texts = [text for text in self.job.texts[:prompts] for _ in range(group)]
        some = [texts[start : start + self.at_once] for start in range(0, len(texts), self.at_once)]
        with self.clock("draw"):
            written = [self.draw(each) for each in some]
        with self.clock("pictures"):
            pictures = [p for each, texts in zip(written, some, strict=True) for p in self.pictures(each, texts)]
        rewards = [brightness(picture) for picture in pictures]
        self.learn(written, rewards, group)
        self.update()
        return {"decisions": sum(len(each.ids) for each in written) * self.count, "pictures": len(pictures)}

    def draw(self, texts: Sequence[str]) -> Written:
        """Write the tokens of a picture for each text."""
        inputs = self.read(texts)
        with torch.no_grad():
            ids = self.ar.generate(
                **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self.count
            )
        return self.written(inputs, ids[:, -self.count :])

    def read(self, texts: Sequence[str]) -> Any:
        """What the stock pipeline reads of texts."""
        messages = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
        return self.pipe.processor.apply_chat_template(
            messages,
            tokenize=True,
            padding=len(texts) > 1,
            target_h=self.job.pixels,
            target_w=self.job.pixels,
            return_dict=True,
            return_tensors="pt",
        )

    def written(self, inputs: Any, tokens: Tensor) -> Written:
        """Tokens [b, T] behind their prompts, with the model's own positions."""
        prompt, _ = self.ar.model.get_rope_index(**inputs)  # which also keeps the positions behind it
        behind = self.ar.model._cached_decode_position_ids.permute(1, 0, 2)[..., : self.count - 1]
        return Written(
            ids=torch.cat([inputs["input_ids"], tokens], 1),
            mask=torch.cat([inputs["attention_mask"], torch.ones_like(tokens[:, 1:])], 1),
            positions=torch.cat([prompt, behind], -1),
        )

    def pictures(self, written: Written, texts: Sequence[str]) -> list[Image]:
        """The pictures of large grids, by the stock pipeline."""
        side = self.job.pixels // 32
        grid = written.ids[:, -self.large :].view(-1, side, side)
        prior = grid.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
        made: list[Image] = self.pipe(
            prompt=list(texts),
            prior_token_ids=prior,
            height=self.job.pixels,
            width=self.job.pixels,
            num_inference_steps=1,
            guidance_scale=1.0,
        ).images
        return made

    def learn(self, written: Sequence[Written], rewards: Sequence[float], group: int) -> list[Tensor]:
        """The gradient of a step; returns the old log-probs."""
        micro = min(self.at_once, self.job.micro)
        parts = [each.rows(slice(start, start + micro)) for each in written for start in range(0, len(each.ids), micro)]
        with self.clock("score"), torch.no_grad():
            olds = [self.logprobs(part) for part in parts]
            with self.model.disable_adapter():
                references = [self.logprobs(part) for part in parts]
        scales = scales_of(rewards, group).split(micro)
        for part, old, reference, scale in zip(parts, olds, references, scales, strict=True):
            with self.clock("train"):
                new = self.logprobs(part)
                value = loss(new, old, reference, scale, torch.ones_like(new), self.job.beta)
                (value / len(rewards)).backward()
        return olds

    def logprobs(self, part: Written) -> Tensor:
        """[b, T], of the visual tokens."""
        logits = self.ar(
            input_ids=part.ids[:, :-1],
            attention_mask=part.mask,
            position_ids=part.positions,
            use_cache=False,
            logits_to_keep=self.count,
        ).logits.float()
        logits[..., self.ar.config.image_start_token_id :] = -torch.inf  # no picture has these
        drawn = part.ids[:, -self.count :, None]
        return logits.gather(-1, drawn).squeeze(-1) - logits.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class Walked:
    """The samples of a prompt.

    Attributes:
        text: what the transformer is told: keyword -> [G, ...].
        steps: indices of the noisy steps, in their order.
        latents: [G, ...] before each of these, and after the last one.
    """

    text: dict[str, Tensor]
    steps: Sequence[int]
    latents: Sequence[Tensor]


class Flow(Page):
    """A Stable Diffusion 3.

    Args:
        job: the job.
        clock: measures phases.
        window: consecutive steps that are noisy and train, somewhere in the first half; None: all steps.
    """

    def __init__(self, job: Job, clock: Clock, *, window: int | None) -> None:
        self.pipe = models.sd3(job)
        super().__init__(job, clock, self.pipe.transformer, PAINTER_LAYERS)
        self.window = window
        self.pipe.scheduler.set_timesteps(job.steps)

    def step(self, prompts: int, group: int) -> dict[str, float]:
        """Draw, score and learn; counts what it did."""
        walked, olds, pictures = [], [], []
        for text in self.job.texts[:prompts]:
            with self.clock("draw"), torch.no_grad():
                walk, old, end = self.draw(text, group)
                with self.clock("pictures"):
                    pictures += self.pictures(end)
            walked.append(walk)
            olds.append(old)
        rewards = [brightness(picture) for picture in pictures]
        self.learn(walked, olds, rewards)
        self.update()
        return {"decisions": sum(old.numel() for old in olds), "pictures": len(pictures)}

    def draw(self, text: str, group: int) -> tuple[Walked, Tensor, Tensor]:
        """A walk, the log-probs [G, t] of its noisy steps, and the latents at its end."""
        told, sigmas = self.told(text, group), self.pipe.scheduler.sigmas
        width = self.window or self.job.steps
        first = random.randint(0, self.job.steps // 2 - width) if self.window else 0
        side = self.job.pixels // self.pipe.vae_scale_factor
        x = torch.randn(group, self.pipe.transformer.config.in_channels, side, side)
        latents, logprobs = [], []
        for i in range(self.job.steps):
            v = self.velocity(x, i, told)
            if first <= i < first + width:
                mean, std = self.moments(x, v, i)
                latents.append(x)
                x = mean + std * torch.randn_like(x)
                logprobs.append(gaussian(x, mean, std))
            else:
                x = x + (sigmas[i + 1] - sigmas[i]) * v
            if i == first + width - 1:
                latents.append(x)
        steps = range(first, first + width)
        return Walked(text=told, steps=steps, latents=latents), torch.stack(logprobs, 1), x

    @torch.no_grad()
    def told(self, text: str, group: int) -> dict[str, Tensor]:
        """What the transformer reads of a text."""
        embeddings, _, pooled, _ = self.pipe.encode_prompt(text, None, None, do_classifier_free_guidance=False)
        return {
            "encoder_hidden_states": embeddings.repeat(group, 1, 1),
            "pooled_projections": pooled.repeat(group, 1),
        }

    def velocity(self, x: Tensor, i: int, told: dict[str, Tensor]) -> Tensor:
        """[G, ...], at step i."""
        time = self.pipe.scheduler.timesteps[i].expand(len(x))
        v: Tensor = self.pipe.transformer(hidden_states=x, timestep=time, **told, return_dict=False)[0]
        return v

    def moments(self, x: Tensor, v: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a noisy step: Flow-GRPO's, with a noise level of 0.7."""
        sigmas = self.pipe.scheduler.sigmas
        t, dt = sigmas[i], sigmas[i + 1] - sigmas[i]
        g = 0.7 * torch.sqrt(t / (1 - torch.where(t == 1, sigmas[1], t)))
        mean = x * (1 + g**2 / (2 * t) * dt) + v * (1 + g**2 * (1 - t) / (2 * t)) * dt
        return mean, g * torch.sqrt(-dt)

    def scored(self, walk: Walked, j: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs [G], mean and standard deviation of the noisy step j."""
        x, i = walk.latents[j], walk.steps[j]
        mean, std = self.moments(x, self.velocity(x, i, walk.text), i)
        return gaussian(walk.latents[j + 1], mean, std), mean, std

    def pictures(self, latents: Tensor) -> list[Image]:
        """By the pipeline's autoencoder."""
        config = self.pipe.vae.config
        pixels = self.pipe.vae.decode(latents / config.scaling_factor + config.shift_factor, return_dict=False)[0]
        made: list[Image] = self.pipe.image_processor.postprocess(pixels, output_type="pil")
        return made

    def learn(self, walked: Sequence[Walked], olds: Sequence[Tensor], rewards: Sequence[float]) -> None:
        """The gradient of a step, one backward pass for each step that trains."""
        group, beta = len(olds[0]), self.job.beta
        for walk, old, scale in zip(walked, olds, scales_of(rewards, group).split(group), strict=True):
            for j in range(len(walk.steps)):
                with self.clock("score"), torch.no_grad(), self.model.disable_adapter():
                    _, reference, _ = self.scored(walk, j)
                with self.clock("train"):
                    logprobs, mean, std = self.scored(walk, j)
                    ratio = (logprobs - old[:, j]).exp()
                    surrogate = torch.minimum(ratio * scale, ratio.clamp(0.8, 1.2) * scale)
                    kl = (mean - reference).square().flatten(1).mean(1) / (2 * std**2)
                    ((beta * kl - surrogate).mean() / len(walk.steps) / len(walked)).backward()


def gaussian(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The log-density [G] of latents, its mean over their dimensions."""
    density = -((x - mean) ** 2) / (2 * std**2) - std.log() - math.log(2 * math.pi) / 2
    return density.flatten(1).mean(1)


def scales_of(rewards: Sequence[float], group: int) -> Tensor:
    """[B], the advantages; pictures of a group differ little, so it counts in fp64."""
    return advantages(torch.tensor(rewards, dtype=torch.float64), group).float()
