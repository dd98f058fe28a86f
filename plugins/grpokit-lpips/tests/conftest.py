"""Checkpoints of random trunks, so that no test needs the published weights."""

import warnings

import lpips
import pytest
import torch

from grpokit_lpips import trunk


class OnDemand(dict):
    """net -> what `make` gives for it, made when it is first asked for: the largest takes seconds."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, net):
        self[net] = self.make(net)
        return self[net]


@pytest.fixture(scope="session")
def library():
    """net -> the lpips library's own network with a random trunk (`pnet_rand`)."""

    def make(net):
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", message=".*(pretrained|weight enum)", category=UserWarning)
            torch.manual_seed(0)
            return lpips.LPIPS(net=net, pnet_rand=True, verbose=False)

    return OnDemand(make)


@pytest.fixture(scope="session")
def checkpoints(library, tmp_path_factory):
    """net -> the same trunk as a file with torchvision's names."""
    folder = tmp_path_factory.mktemp("trunks")

    def make(net):
        state = {f"features.{name.partition('.')[2]}": x.clone() for name, x in library[net].net.state_dict().items()}
        torch.save(state, folder / f"{net}.pth")
        return str(folder / f"{net}.pth")

    return OnDemand(make)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))  # never the machine's
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(trunk, "SOURCE", "http://127.0.0.1:9/")  # where nobody answers: no test reaches the network
