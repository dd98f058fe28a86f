"""The head against its own definition: what its weights minimise, and how well it tells two populations."""

import lpips_trunks
import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageFilter

from grpokit_likeness.features import features
from grpokit_likeness.head import Head, right_share

FEATURES = 7


def _populations(seed, references=12, others=30, shift=1.0, features=FEATURES):
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.1, 10, features)
    direction = rng.normal(size=features)
    ones = (rng.normal(size=(references, features)) + shift * direction) * spread + 3
    return ones, rng.normal(size=(others, features)) * spread + 3


def _loss(head, references, others, ridge):
    """Both populations count as much as the references have rows; the prior is on each weight."""
    logits = [np.sum((x - head.middle) / head.scale * head.weights, axis=1) for x in (references, others)]
    right = np.log1p(np.exp(-logits[0])).sum()
    wrong = np.log1p(np.exp(logits[1])).mean() * len(references)
    return right + wrong + ridge * len(head.weights) / 2 * np.sum(head.weights**2)


@pytest.mark.parametrize("features", [FEATURES, 90])  # fewer than pictures, and more
@pytest.mark.parametrize("ridge", [0.01, 0.5, 5.0])
def test_no_change_of_a_weight_lowers_the_loss(ridge, features):
    references, others = _populations(0, features=features)
    head = Head.fit(references, others, ridge=ridge)
    for feature in range(features):
        step = np.zeros(features)
        step[feature] = 1e-4
        losses = []
        for change in (-step, step):
            changed = Head(weights=head.weights + change, middle=head.middle, scale=head.scale)
            losses.append(_loss(changed, references, others, ridge))
        assert losses[1] - losses[0] == pytest.approx(0, abs=1e-9)  # the slope, of central differences
        assert min(losses) > _loss(head, references, others, ridge)


def test_the_middle_and_the_scale_are_those_of_both_populations():
    references, others = _populations(1)
    head = Head.fit(references, others, ridge=0.5)
    middle = 0.5 * references.mean(0) + 0.5 * others.mean(0)
    variance = 0.5 * np.mean((references - middle) ** 2, 0) + 0.5 * np.mean((others - middle) ** 2, 0)
    np.testing.assert_allclose(head.middle, middle)
    np.testing.assert_allclose(head.scale, np.sqrt(variance))
    assert head.logits(middle[None]).tolist() == [0.0]


def test_it_tells_pictures_that_it_has_not_learned_from():
    """The means are 2 apart along a random direction; the best rule is right in all but a few pairs."""
    references, others = _populations(2, references=216, others=230, shift=2.0)
    head = Head.fit(references[:16], others[:30], ridge=0.5)
    assert right_share(head.logits(references[16:]), head.logits(others[30:])) > 0.97
    alike, others = _populations(3, references=216, others=230, shift=0.0)
    head = Head.fit(alike[:16], others[:30], ridge=0.5)
    assert right_share(head.logits(alike[16:]), head.logits(others[30:])) == pytest.approx(0.5, abs=0.1)


def test_how_many_others_there_are_changes_nothing():
    references, others = _populations(4)
    once = Head.fit(references, others, ridge=0.5)
    thrice = Head.fit(references, others.repeat(3, axis=0), ridge=0.5)
    np.testing.assert_allclose(once.weights, thrice.weights, atol=1e-9)


def test_what_is_the_same_everywhere_tells_nothing():
    references, others = (np.column_stack([x, np.full(len(x), 0.25)]) for x in _populations(5))
    head = Head.fit(references, others, ridge=0.5)
    assert head.weights[-1] == 0
    assert np.isfinite(head.logits(references)).all()


def test_a_logit_has_the_same_bits_in_every_batch():
    references, others = _populations(6, others=64)
    head = Head.fit(references, others, ridge=0.5)
    together = head.logits(others)
    assert [float(head.logits(row[None])[0]) for row in others] == together.tolist()


def test_shares_of_pairs_by_hand():
    assert right_share(np.array([3.0, 1.0]), np.array([2.0, 1.0, 0.0])) == pytest.approx((3 + 1.5) / 6)


def _crops(name):
    whole = Image.fromarray(getattr(skimage.data, name)()).convert("RGB").resize((384, 384))
    return [whole.crop((x, y, x + 128, y + 128)) for x in (0, 128, 256) for y in (0, 128, 256)]


@pytest.mark.very_slow
def test_real_weights_tell_a_style_on_pictures_of_other_things(tmp_path, monkeypatch):
    """It learns blurred from sharp on an astronaut and a cat, and tells them on coffee and a rocket."""
    weights = lpips_trunks.package()
    if weights is None:
        pytest.skip("needs the packages of requirements-weights.txt")
    lpips_trunks.write(weights, tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    look = features("lpips", reward="test", device="cpu")
    sharp, blurred = {}, {}
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        crops = _crops(name)
        sharp[name] = look(crops)
        blurred[name] = look([crop.filter(ImageFilter.GaussianBlur(1.5)) for crop in crops])
    seen = ("astronaut", "chelsea")
    head = Head.fit(*(np.concatenate([each[name] for name in seen]) for each in (blurred, sharp)), ridge=0.5)
    shares = [right_share(head.logits(blurred[name]), head.logits(sharp[name])) for name in ("coffee", "rocket")]
    assert min(shares) > 0.9
    assert sharp["rocket"].shape == (9, 1152)
