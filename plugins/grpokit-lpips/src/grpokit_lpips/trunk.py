"""The LPIPS network: its heads come with the package lpips, its trunk's weights from a file.

The file is torchvision's classifier checkpoint, in torch's download cache unless a path is given. Where the cache lacks
it, it is fetched as torch.hub does, with its hash checked; a machine that cannot is told which file, where and how.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import lpips
import torch

from grpokit import UsageError
from grpokit.rewards import downloads

Net = Literal["alex", "vgg", "squeeze"]

CHECKPOINTS: dict[str, str] = {
    "alex": "alexnet-owt-7be5be79.pth",
    "vgg": "vgg16-397923af.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
}
"""The file of each trunk, as torchvision names it."""

SOURCE = "https://download.pytorch.org/models/"


def build(net: Net, weights_path: str | Path | None) -> torch.nn.Module:
    """Return LPIPS 0.1 with the trunk's weights from a file, in float32 on the CPU, frozen and in evaluation mode.

    Args:
        net: the trunk.
        weights_path: the trunk's checkpoint; None: `CHECKPOINTS[net]` in torch's download cache, fetched if missing.

    Raises:
        UsageError: the file does not exist and cannot be fetched, or does not hold this trunk.
    """
    weights = _read(net, weights_path)
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
    ):  # its random start must not move the global state
        # lpips passes an argument that torchvision has renamed.
        warnings.filterwarnings("ignore", message=".*(pretrained|weight enum)", category=UserWarning)
        model: Any = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    wanted = {f"features.{name.partition('.')[2]}": name for name in model.net.state_dict()}
    if not isinstance(weights, dict) or not wanted.keys() <= weights.keys():
        missing = [name for name in wanted if not isinstance(weights, dict) or name not in weights]
        raise UsageError(
            f"The file '{_place(net, weights_path)}' is not a checkpoint of the trunk '{net}': expected torchvision's "
            f"state dict (as in {CHECKPOINTS[net]}), and '{missing[0]}' is not in it. {_remedy(net)}"
        )
    try:
        model.net.load_state_dict({ours: weights[theirs] for theirs, ours in wanted.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"The file '{_place(net, weights_path)}' is not a checkpoint of the trunk '{net}' (as in "
            f"{CHECKPOINTS[net]}): {reason}. {_remedy(net)}"
        ) from error
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()  # type: ignore[no-any-return]


def _read(net: Net, weights_path: str | Path | None) -> Any:
    place = _place(net, weights_path)
    if not place.is_file():
        looked, failed = "as the parameter weights_path says", ""
        if weights_path is None:
            url, digest = f"{SOURCE}{CHECKPOINTS[net]}", place.stem.rpartition("-")[2]
            failed = downloads.fetch(url, place, digest=digest, by="grpokit-lpips")
            looked = f"in torch's download cache; fetching it from {url} failed: {failed}"
        if failed or weights_path is not None:
            raise UsageError(
                f"The reward 'lpips' needs the weights of its trunk '{net}', the file {CHECKPOINTS[net]}. There is no "
                f"file '{place}' ({looked}). {_remedy(net)}",
                page="doctor#weights",
            )
    try:
        return torch.load(place, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of another kind make torch's reader raise a dozen kinds
        mend = "Delete it." if weights_path is None else f"Give {CHECKPOINTS[net]}, or leave weights_path out."
        raise UsageError(  # without torch's own text, whose advice is to load files unsafely
            f"The file '{place}' cannot be read as a checkpoint of torch ({type(error).__name__}): it is torn, or "
            f"another kind of file. {mend} {_remedy(net)}"
        ) from error


def _place(net: Net, weights_path: str | Path | None) -> Path:
    if weights_path is not None:
        return Path(weights_path).expanduser()
    return Path(torch.hub.get_dir()) / "checkpoints" / CHECKPOINTS[net]


def _remedy(net: Net) -> str:
    code = f"import torch; torch.hub.load_state_dict_from_url('{SOURCE}{CHECKPOINTS[net]}', check_hash=True)"
    return (
        f'Fetch it into the cache with: python -c "{code}" -- or copy it from another machine and give its path as '
        "weights_path."
    )
