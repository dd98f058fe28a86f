"""What the hub answers becomes one message each, at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from gguf_files import needs_gguf, save_gguf
from huggingface_hub import constants
from tiny_models import save_tiny_model, tiny_model

from grpokit import UsageError
from grpokit_lm import sources
from grpokit_lm.loading import LoadSettings, load_model


@pytest.mark.parametrize(
    ("name", "offline", "words"),
    [
        (
            "org/absent",
            True,
            r"is not a folder here and not in the Hugging Face cache .* because HF_HUB_OFFLINE is set",
        ),
        ("absent", False, r"because local_files_only is set\. Fetch it .* by `hf download absent`"),
    ],
)
def test_without_network(name: str, offline: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(UsageError, match=words):
        sources.find(name, sources.ReadSettings(local_files_only=not offline))


def test_a_folder_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package/__init__.py").write_text("raise RuntimeError('only looked for')")
    save_tiny_model(tmp_path / "a_package/models/tiny")
    monkeypatch.syspath_prepend(tmp_path)
    found = sources.find("a_package:models/tiny")
    assert (found.name, found.place) == ("a_package:models/tiny", str(tmp_path / "a_package/models/tiny"))
    assert load_model("a_package:models/tiny", LoadSettings(tokenizer="a_package:models/tiny")).name == found.name
    for name, words in (
        ("a_package:models/absent", r"The model folder '.*a_package/models/absent' does not exist"),
        ("no_package:models/tiny", r"should be in the Python package 'no_package', but"),
        ("json:models/tiny", r"The model folder '.*json/models/tiny' does not exist"),
        ("abc:models/tiny", r"in the Python package 'abc', but there is no"),  # one module, without a folder
        ("C:models", r"The model folder 'C:models' does not exist"),  # a drive
    ):
        with pytest.raises(UsageError, match=words):
            sources.find(name)


def test_a_hub_that_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that nobody listens on
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"because http://127.0.0.1:9 cannot be reached: .*refused"):
        sources.find("org/absent")
    assert time.monotonic() - began < 5


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in a cache, as its only content, and a hub that is silent."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "models--org--tiny/refs").mkdir(parents=True)
    (tmp_path / "models--org--tiny/refs/main").write_text("a" * 40)
    return save_tiny_model(tmp_path / "models--org--tiny/snapshots" / ("a" * 40))


def test_a_model_in_the_cache_is_read_at_once(cached: Path) -> None:
    began = time.monotonic()
    with pytest.warns(UserWarning, match=r":9 cannot be reached \(.*refused\); 'org/tiny' comes from the cache, '"):
        loaded = load_model("org/tiny")
    with pytest.warns(UserWarning, match="'org/tiny' comes from the cache"):
        load_model(loaded.model, LoadSettings(tokenizer="org/tiny"))
    assert load_model("org/tiny", LoadSettings(local_files_only=True)).name == "org/tiny"
    assert time.monotonic() - began < 5


@needs_gguf
@pytest.mark.filterwarnings("ignore:.* comes from the cache")
def test_a_gguf_file_of_a_repository(cached: Path) -> None:
    save_gguf(cached / "tiny.gguf", tiny_model("llama", seed=1))
    (cached / "model.safetensors").unlink()  # most such repositories have no other weights
    loaded = load_model("org/tiny/tiny.gguf")
    assert torch.equal(loaded.model.lm_head.weight, tiny_model("llama", seed=1).lm_head.weight)
    assert load_model(loaded.name, loaded.reading).name == "org/tiny/tiny.gguf"
    with pytest.raises(UsageError, match=r"'org/absent/a.gguf' is not a folder here .* by `hf download org/absent`"):
        load_model("org/absent/a.gguf", LoadSettings(local_files_only=True))


@pytest.mark.filterwarnings("ignore:.* comes from the cache")
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (
            "model-00002*",
            r"is in .*, but incomplete: model.safetensors.index.json names 2 files, and '.*' is not there",
        ),
        ("model*", r"is in the Hugging Face cache \('.*'\), but without its weights"),
        ("tokenizer*", r"is in the Hugging Face cache \('.*'\), but without its tokenizer"),
    ],
)
@pytest.mark.parametrize(
    ("local_files_only", "why"),
    [(False, "http://127.0.0.1:9 cannot be reached: .*"), (True, "local_files_only is set")],
)
def test_a_model_that_the_cache_has_in_part(
    missing: str, words: str, local_files_only: bool, why: str, cached: Path
) -> None:
    (cached / "model.safetensors").unlink()
    tiny_model("llama").save_pretrained(cached, max_shard_size="30KB")
    for file in cached.glob(missing):
        file.unlink()
    with pytest.raises(UsageError, match=rf"'org/tiny' {words}\. It cannot be fetched, because {why}\. Fetch it"):
        load_model("org/tiny", LoadSettings(local_files_only=local_files_only))


@pytest.mark.parametrize("by_name", [True, False])
def test_a_tokenizer_that_cannot_be_fetched(by_name: bool, cached: Path) -> None:
    """Though nothing else of the model needs a hub."""
    began = time.monotonic()
    with pytest.raises(
        UsageError, match=r"The tokenizer 'org/absent' is not a folder here and .* because .*:9 cannot be reached: .*"
    ):
        load_model(cached if by_name else tiny_model("llama"), LoadSettings(tokenizer="org/absent"))
    assert time.monotonic() - began < 5


ANSWERS = {  # repository -> status and headers, as the real hub gives them
    "org/absent": (401, {"X-Error-Code": "RepoNotFound"}),
    "org/gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}),
    "org/old": (404, {"X-Error-Code": "RevisionNotFound"}),
}


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        repository = "/".join(self.path.split("/")[1:3])
        status, headers = ANSWERS.get(repository, (200, {}))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_what_the_hub_says(hub: str) -> None:
    code = (
        "from grpokit import UsageError\n"
        "from grpokit_lm.sources import ReadSettings, find\n"
        f"for name in {list(ANSWERS)}:\n"
        "    try:\n        find(name, ReadSettings(revision='v9'))\n"
        "    except UsageError as error:\n        print(error)\n"
    )
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    absent, gated, old = result.stdout.splitlines()
    assert absent.startswith("The Hugging Face hub has no model 'org/absent' that you may read. Check the spelling")
    assert gated.startswith("The model 'org/gated' is gated: its owner gives access on request")
    assert old.startswith("The model 'org/old' has no revision 'v9'")
