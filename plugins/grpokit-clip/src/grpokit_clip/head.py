"""The LAION aesthetic predictor: five linear layers from an image embedding to one number.

Dropout stands between the layers in training and nothing else, so that scoring is the layers one after the other. It
runs in float64: a score then depends on its embedding alone, not on how many are scored at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from grpokit import UsageError
from grpokit_clip import weights

LAYERS = ("layers.0", "layers.2", "layers.4", "layers.6", "layers.7")
"""The linear layers as the published state dict names them; the numbers left out are dropout."""


class Head:
    """The predictor of Schuhmann (2022, "improved aesthetic predictor"): 768-1024-128-64-16-1 for ViT-L/14.

    Args:
        place: its state dict, as a file of torch or safetensors.
        width: numbers in an embedding.

    Raises:
        UsageError: the file is torn, of another kind, or for embeddings of another width.
    """

    def __init__(self, place: Path, *, width: int) -> None:
        state = _read(place)
        wanted = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
        tensors = state if isinstance(state, dict) else {}
        missing = [name for name in wanted if not isinstance(tensors.get(name), Tensor)]
        if missing:
            raise UsageError(
                f"The file '{place}' is not an aesthetic predictor: expected a state dict with {', '.join(LAYERS)} "
                f"(as in {weights.HEAD_FILE}), and '{missing[0]}' is not in it. {weights.head_remedy()}"
            )
        self.layers = []
        for layer in LAYERS:
            weight, bias = tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]
            self.layers.append((weight.double(), bias.double()))
        self._check(place, width)

    def _check(self, place: Path, width: int) -> None:
        shapes = [(tuple(weight.shape), tuple(bias.shape)) for weight, bias in self.layers]
        outs = [bias[0] if len(bias) == 1 else -1 for _, bias in shapes]
        ins = [weight[1] if len(weight) == 2 else -1 for weight, _ in shapes]
        linear = [weight for weight, _ in shapes] == list(zip(outs, ins, strict=True))
        chained = linear and ins[1:] == outs[:-1]
        if not chained or outs[-1] != 1:
            raise UsageError(
                f"The file '{place}' is not an aesthetic predictor: expected linear layers that follow one another "
                f"and end in one number, got weights of the shapes {', '.join(str(weight) for weight, _ in shapes)}. "
                f"{weights.head_remedy()}"
            )
        if ins[0] != width:
            raise UsageError(
                f"The aesthetic predictor '{place}' is made for embeddings of {ins[0]} numbers, and the CLIP model "
                f"gives {width}. The published predictor belongs to the model ViT-L-14 with the weights openai; for "
                "another model give a predictor that was trained on its embeddings as head_path."
            )
        if not all(part.isfinite().all() for pair in self.layers for part in pair):
            raise UsageError(f"The aesthetic predictor '{place}' has weights that are not finite. Take another file.")

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Embeddings of length 1 [B, D] -> scores [B], in float64."""
        x = embeddings.double()
        for weight, bias in self.layers:
            x = x @ weight.T + bias
        return x[:, 0]  # [B, 1] -> [B]


def _read(place: Path) -> Any:
    try:
        if place.suffix == ".safetensors":
            return load_file(place)
        return torch.load(place, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of another kind make torch's reader raise a dozen kinds
        raise UsageError(  # without torch's own text, whose advice is to load files unsafely
            f"The file '{place}' cannot be read as a checkpoint of torch or safetensors ({type(error).__name__}): it "
            f"is torn, or another kind of file than {weights.HEAD_FILE}. {weights.delete(place)}{weights.head_remedy()}"
        ) from error
