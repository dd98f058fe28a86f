"""A tiny CLIP with random weights and a predictor for it, in all the forms that a user may have; no network."""

import functools
import http.server
import json
import threading
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub.constants
import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from grpokit_clip import tower, weights

NOBODY = "http://127.0.0.1:9"
"""Where nobody answers: what reaches for the network fails at once."""

CONFIG = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """The library's own model, and files of it.

    `folder` has the same weights with its own way of preparing pictures (`prepared`).
    """

    model: nn.Module
    torch_file: str
    safetensors_file: str
    folder: str
    prepared: dict
    predictor: nn.Module
    head: str
    safe_head: str


def _seeded(build, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = build()
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    place = tmp_path_factory.mktemp("clip")
    (place / "tiny-clip.json").write_text(json.dumps(CONFIG))
    open_clip.add_model_config(place / "tiny-clip.json")
    model = _seeded(lambda: open_clip.create_model("tiny-clip", pretrained=None), 0)
    torch.save(model.state_dict(), place / "clip.pt")
    save_file(model.state_dict(), place / "clip.safetensors")
    folder = place / "local"
    folder.mkdir()
    prepared = {
        "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], "interpolation": "bilinear", "resize_mode": "squash"
    }  # fmt: skip
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": prepared}))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    predictor = _seeded(_predictor, 1)
    for parameter in predictor.parameters():
        parameter.mul_(3.0)  # scores as far apart as real ones
    state = {f"layers.{name}": x for name, x in predictor.state_dict().items()}
    torch.save(state, place / "head.pth")
    save_file(state, place / "head.safetensors")
    return Tiny(
        model=model,
        torch_file=str(place / "clip.pt"),
        safetensors_file=str(place / "clip.safetensors"),
        folder=str(folder),
        prepared=prepared,
        predictor=predictor,
        head=str(place / "head.pth"),
        safe_head=str(place / "head.safetensors"),
    )


def _predictor():
    return nn.Sequential(
        nn.Linear(64, 32), nn.Dropout(0.2),
        nn.Linear(32, 16), nn.Dropout(0.2),
        nn.Linear(16, 8), nn.Dropout(0.1),
        nn.Linear(8, 4), nn.Linear(4, 1),
    )  # fmt: skip


@pytest.fixture
def ask_at(monkeypatch):
    """A function that lets huggingface_hub take another address for the hub."""

    def use(endpoint):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return use


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch, tmp_path, ask_at):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))  # never the machine's
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(weights, "HEAD_SOURCE", f"{NOBODY}/")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    ask_at(NOBODY)
    tower._towers.clear()  # models that another test's errors may still hold


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server on this machine: its address, the folder that it shows, and what it was asked for."""

    url: str
    folder: Path
    asked: list


@pytest.fixture
def served(tmp_path):
    folder, asked = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_response(self, code, message=None):
            super().send_response(code, message)
            if code == 404:
                self.send_header("X-Error-Code", "EntryNotFound")

        def end_headers(self):  # what the Hugging Face hub says of each file
            self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
            self.send_header("ETag", '"0123456789abcdef"')
            super().end_headers()

        def log_message(self, *_):
            asked.append(f"{self.command} {self.path}")

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield Served(url=f"http://127.0.0.1:{server.server_port}", folder=folder, asked=asked)
        server.shutdown()
