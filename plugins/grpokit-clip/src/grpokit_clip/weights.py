"""Where the weights lie: open_clip's in the Hugging Face cache, the aesthetic head's in torch's.

A file that is missing is fetched as its library does, with a line on stderr. Whoever cannot be reached is found out
at once, without a minute of new tries, and ends in one message: which file, where it was looked for, what fetches it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
import torch
from huggingface_hub import constants
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

from grpokit import UsageError
from grpokit.errors import nearest, one_line
from grpokit.rewards import downloads

HEAD_FILE = "sac+logos+ava1-l14-linearMSE.pth"
"""The aesthetic predictor for ViT-L/14 (trained on SAC, logos and AVA), as its author names it."""

HEAD_SOURCE = "https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/main/"

HEAD_SHA256 = "21dd590f3ccdc646f0d53120778b296013b096a035a2718c9cb0d511bff0f1e0"


def recipe(model: str, pretrained: str | None) -> Mapping[str, Any]:
    """Return open_clip's record of published weights: where they lie, and how pictures are prepared for them.

    Args:
        model: open_clip's name of an architecture.
        pretrained: open_clip's name of weights for it; None: nothing is known of them, and the record is empty.

    Raises:
        UsageError: there is no such architecture, or no such weights for it; the nearest name is given.
    """
    known = open_clip.list_models()
    if model not in known:
        raise UsageError(
            f"open_clip has no model '{model}'{nearest(model, known)}. It knows {len(known)} of them: "
            'python -c "import open_clip; print(*open_clip.list_models())"'
        )
    if pretrained is None:
        return {}
    found: Mapping[str, Any] = open_clip.get_pretrained_cfg(model, pretrained)
    if not found:
        tags = open_clip.list_pretrained_tags_by_model(model)
        raise UsageError(
            f"The parameter pretrained: open_clip has no weights '{pretrained}' for the model '{model}'"
            f"{nearest(pretrained, tags)}. It has: {', '.join(tags) or 'none'}. For weights of your own give "
            "weights_path, and null as pretrained."
        )
    return found


def clip_file(model: str, pretrained: str, found: Mapping[str, Any], *, reward: str) -> Path:
    """Return the file of published weights, from the Hugging Face cache or fetched into it by open_clip.

    A file in the cache is taken as it is, without asking for a newer one.

    Raises:
        UsageError: it is not there and cannot be fetched.
    """
    repository, name = os.path.split(found["hf_hub"])
    names = [name] if name else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]  # in the order in which open_clip asks
    for each in names:
        cached = huggingface_hub.try_to_load_from_cache(repository, each)
        if isinstance(cached, str):
            return Path(cached)
    if constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    else:
        source = f"{constants.ENDPOINT}/{repository}"
        print(f"grpokit-clip: fetching {source} ({names[0]}) to '{constants.HF_HUB_CACHE}'", file=sys.stderr)
        reason = downloads.unreachable(constants.ENDPOINT)
        if not reason:
            try:
                return Path(open_clip.download_pretrained(dict(found)))
            except (OSError, RuntimeError, ValueError, HTTPException) as error:
                reason = one_line(error)
    code = f"import open_clip; open_clip.download_pretrained(open_clip.get_pretrained_cfg('{model}', '{pretrained}'))"
    raise UsageError(
        f"The reward '{reward}' needs the weights '{pretrained}' of the CLIP model '{model}', the file "
        f"{' or '.join(names)} of {repository}. Looked for it in '{constants.HF_HUB_CACHE}' (the Hugging Face cache), "
        f"and there is no file; fetching it from {constants.ENDPOINT} failed: {reason}. Fetch it into the cache with: "
        f'python -c "{code}" -- or copy it from another machine and give its path as weights_path.',
        page="doctor#weights",
    )


def head_file(head_path: str | Path | None) -> Path:
    """Return the aesthetic predictor's file: the given one, or the published one from torch's cache.

    The published one is fetched into `$TORCH_HOME/hub/checkpoints` where it is missing, and its hash checked.

    Raises:
        UsageError: it is not there and cannot be fetched.
    """
    if head_path is not None:
        place, looked = Path(head_path).expanduser(), "as the parameter head_path says"
    else:
        place, looked = Path(torch.hub.get_dir()) / "checkpoints" / HEAD_FILE, "in torch's download cache"
    if place.is_file():
        return place
    failed = ""
    if head_path is None:
        reason = downloads.fetch(f"{HEAD_SOURCE}{HEAD_FILE}", place, digest=HEAD_SHA256, by="grpokit-clip")
        if not reason:
            return place
        failed = f"; fetching it failed: {reason}"
    raise UsageError(
        f"The reward 'aesthetic' needs the weights of its predictor, the file {HEAD_FILE}. Looked for it at '{place}' "
        f"({looked}), and there is no file{failed}. {head_remedy()}",
        page="doctor#weights",
    )


def delete(place: Path) -> str:
    """The advice to delete a file that does not open, if a library fetched it; a file of the user's own is theirs."""
    caches = (Path(constants.HF_HUB_CACHE), Path(torch.hub.get_dir()))
    return "Delete it. " if any(cache in place.parents for cache in caches) else ""


def head_remedy() -> str:
    """How to come by the aesthetic predictor's file."""
    return (
        'Fetch it into the cache with: python -c "from grpokit_clip import weights; weights.head_file(None)" -- or '
        f"fetch {HEAD_SOURCE}{HEAD_FILE} on another machine and give the copy's path as head_path."
    )
