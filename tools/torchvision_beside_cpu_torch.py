"""Lets a CUDA build of torchvision be imported beside a CPU build of torch, in the development environment.

Where torchvision's extension does not load, its Python part still registers kernels for two operators that the
extension would have declared, and fails. Run as a script, this file puts itself into the interpreter's environment,
where a `.pth` file imports it; it declares the two just before torchvision's first import, costs nothing until then,
and does nothing where the extension loads.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[object] = []  # a torch.library.Library takes its operators with it when it is collected


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            _declare([Path(folder) for folder in spec.submodule_search_locations or []])
        return spec


def _declare(folders: list[Path]) -> None:
    import torch

    for extension in [file for folder in folders for file in folder.glob("_C*.so")]:
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(operator + _SCHEMA)
    _kept.append(library)


def _install() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    shutil.copy(__file__, folder)
    (folder / f"{Path(__file__).stem}.pth").write_text(f"import {Path(__file__).stem}\n", encoding="utf-8")


if __name__ == "__main__":
    _install()
else:
    sys.meta_path.insert(0, _Finder())
