"""Checkpoints of random trunks, so that no test needs the published weights."""

import warnings

import lpips
import pytest
import torch

from grpokit_lpips import trunk


@pytest.fixture(scope="session")
def library():
    """net -> the lpips library's own network with a random trunk (`pnet_rand`)."""
    networks = {}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message=".*(pretrained|weight enum)", category=UserWarning)
        for net in ("alex", "vgg", "squeeze"):
            torch.manual_seed(0)
            networks[net] = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    return networks


@pytest.fixture(scope="session")
def checkpoints(library, tmp_path_factory):
    """net -> the same trunk as a file with torchvision's names."""
    folder = tmp_path_factory.mktemp("trunks")
    paths = {}
    for net, network in library.items():
        state = {f"features.{name.partition('.')[2]}": x.clone() for name, x in network.net.state_dict().items()}
        paths[net] = str(folder / f"{net}.pth")
        torch.save(state, paths[net])
    return paths


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))  # never the machine's
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(trunk, "SOURCE", "http://127.0.0.1:9/")  # where nobody answers: no test reaches the network
