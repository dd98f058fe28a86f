"""A CLIP model and the embeddings that it made, shared by all rewards of a process that ask for the same one.

Embeddings are kept by what is in the pictures or texts of a batch, so that `clip-score` after `aesthetic` (or the other
way round) does not run the image tower again. A model lives as long as a reward holds it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor

from grpokit import RewardError, UsageError
from grpokit_clip import weights
from grpokit_clip.loading import Dtype, load

KEPT = 8192
"""Embeddings of pictures, and as many of texts, that are kept: 48 MiB each at 768 numbers."""

LONGEST = 64
"""How many times longer than wide a picture is looked at, where only its middle counts anyway."""

_towers: WeakValueDictionary[tuple[Any, ...], Tower] = WeakValueDictionary()
_loading = threading.Lock()
_Item = TypeVar("_Item")


def shared(
    *,
    model: str,
    pretrained: str | None,
    weights_path: str | Path | None,
    device: torch.device,
    dtype: Dtype,
    reward: str,
) -> Tower:
    """Return the tower for these parameters: the one that another reward holds, or a new one.

    Args:
        model: open_clip's name of the architecture; a folder as `weights_path` brings its own.
        pretrained: open_clip's name of the weights; with a file as `weights_path`, the weights that it is a copy of,
            whose activation and preprocessing are taken; None: those of the architecture.
        weights_path: a file, or a folder in open_clip's local form; None: the Hugging Face cache.
        device: where the model computes.
        dtype: of the model's large weights; normalisation layers stay in float32.
        reward: the reward's name, for messages.

    Raises:
        UsageError: there is no such model, or its weights are missing, torn or foreign.
    """
    model = model.replace("/", "-")
    with _loading:
        place, recipe = _find(model, pretrained, weights_path, reward)
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        state = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)  # may be replaced
        key = (None if place.is_dir() else (model, pretrained), place, state, str(device), dtype)
        tower = _towers.get(key)
        if tower is None:
            tower = _towers[key] = Tower(place, model=model, recipe=recipe, device=device, dtype=dtype)
        return tower


def _find(
    model: str, pretrained: str | None, weights_path: str | Path | None, reward: str
) -> tuple[Path, Mapping[str, Any]]:
    """The file or folder with the weights, and open_clip's record of them."""
    if weights_path is not None:
        place = Path(weights_path).expanduser().absolute()  # a relative one could be read as the name of weights
        if not place.exists():
            which = f"'{pretrained}' of" if pretrained else "of"
            raise UsageError(
                f"The reward '{reward}' needs the weights {which} the CLIP model '{model}'. Looked for them at "
                f"'{place}' (as the parameter weights_path says), and there is no file or folder. Correct the path, or "
                "leave it out: then the weights are taken from the Hugging Face cache, and fetched if they are not "
                "there."
            )
        return place, {} if place.is_dir() else weights.recipe(model, pretrained)
    recipe = weights.recipe(model, pretrained)
    if pretrained is None:
        raise UsageError(
            f"{reward}: pretrained is null, so that the parameter weights_path must name a file or a folder with "
            f"weights of the model '{model}'."
        )
    return weights.clip_file(model, pretrained, recipe, reward=reward), recipe


class Tower:
    """A CLIP model in evaluation mode that turns pictures and texts into embeddings of length 1.

    Args:
        place: a file with weights of `model`, or a folder in open_clip's local form.
        model: open_clip's name of the architecture.
        recipe: open_clip's record of the published weights; empty where nothing is known of them.
        device: where it computes.
        dtype: of the large weights.

    Raises:
        UsageError: the weights are torn, or not those of the model.
    """

    def __init__(
        self, place: Path, *, model: str, recipe: Mapping[str, Any], device: torch.device, dtype: Dtype
    ) -> None:
        self.device = device
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.name = str(place) if place.is_dir() else model
        self.model, self.tokenizer, self.width = load(place, model=model, recipe=recipe, device=device, dtype=dtype)
        config = PreprocessCfg(**self.model.visual.preprocess_cfg)
        self._middle_only = config.resize_mode == "shortest"
        self.preprocess: Any = image_transform_v2(config, is_train=False)
        self._images: _Recent[bytes] = _Recent()
        self._texts: _Recent[str] = _Recent()
        self._lock = threading.Lock()

    def images(self, pictures: Sequence[Image.Image], *, batch_size: int, reward: str) -> Tensor:
        """Embed RGB pictures; each content is computed once, and a batch not again while it is kept.

        Args:
            pictures: B pictures.
            batch_size: the most pictures per call of the model.
            reward: the reward's name, for messages.

        Returns:
            [B, D] in float64 on the CPU, of length 1.

        Raises:
            RewardError: an embedding is not finite.
        """
        keys = [_content(picture) for picture in pictures]
        with self._lock:
            found = self._images.all(keys, pictures, self._embed_images, batch_size=batch_size)
        return self._checked(found, "the output", reward)

    def texts(self, texts: Sequence[str], *, batch_size: int, reward: str) -> Tensor:
        """Embed texts, as `images` does pictures. What is beyond the model's context is cut off by its tokenizer."""
        with self._lock:
            found = self._texts.all(texts, texts, self._embed_texts, batch_size=batch_size)
        return self._checked(found, "the prompt", reward)

    def _checked(self, found: Sequence[Tensor], what: str, reward: str) -> Tensor:
        if not found:
            return torch.zeros(0, self.width, dtype=torch.float64)
        embeddings = torch.stack(list(found))  # [B, D]
        finite = embeddings.isfinite().all(-1).tolist()
        if not all(finite):
            raise RewardError(
                f"The CLIP model '{self.name}' gave numbers that are not finite for {what} of row "
                f"{finite.index(False)} (reward '{reward}') in {self.dtype}. Use dtype: float32, or check its weights."
            )
        return embeddings

    def _embed_images(self, pictures: Sequence[Image.Image]) -> Tensor:
        batch = torch.stack([self.preprocess(self._middle(picture)) for picture in pictures])  # [b, 3, h, w]
        with self._computing():
            return _of_length_1(self.model.encode_image(batch.to(self.device, self.dtype)))

    def _embed_texts(self, texts: Sequence[str]) -> Tensor:
        with self._computing():
            tokens = self.tokenizer(list(texts)).to(self.device)
            return _of_length_1(self.model.encode_text(tokens))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            yield

    def _middle(self, picture: Image.Image) -> Image.Image:
        """Cut a very long picture: its shorter side is scaled to the model's size and its ends are thrown away."""
        long, short = max(picture.size), min(picture.size)
        if not self._middle_only or long <= LONGEST * short:
            return picture
        start = (long - LONGEST * short) // 2
        end = start + LONGEST * short
        box = (start, 0, end, short) if picture.width == long else (0, start, short, end)
        return picture.crop(box)


class _Recent(OrderedDict[tuple[_Item, ...], Tensor]):
    """Embeddings [b, D] by the batch that they were computed in; the least recently asked batches are dropped.

    The last bits of an embedding depend on its batch. Whole batches are kept, so that what one call gives never
    depends on earlier calls: a resumed run must not differ for what its cache lacks.
    """

    def all(
        self,
        keys: Sequence[_Item],
        inputs: Sequence[Any],
        embed: Callable[[Sequence[Any]], Tensor],
        *,
        batch_size: int,
    ) -> list[Tensor]:
        """One embedding [D] per key; equal keys are computed once, and batches that are kept not again."""
        wanted: dict[_Item, Any] = {}
        for key, x in zip(keys, inputs, strict=True):
            wanted.setdefault(key, x)
        order = list(wanted)
        found: dict[_Item, Tensor] = {}
        for start in range(0, len(order), batch_size):
            part = tuple(order[start : start + batch_size])
            if part not in self:
                self[part] = embed([wanted[key] for key in part])
            self.move_to_end(part)
            found.update(zip(part, self[part].unbind(), strict=True))
        while sum(map(len, self)) > KEPT:
            self.popitem(last=False)
        return [found[key] for key in keys]


def _of_length_1(embeddings: Tensor) -> Tensor:
    exact = embeddings.double().cpu()
    return torch.nn.functional.normalize(exact, dim=-1)


def _content(picture: Image.Image) -> bytes:
    digest = hashlib.blake2b(f"{picture.width} x {picture.height}".encode(), digest_size=16)
    digest.update(picture.tobytes())
    return digest.digest()
