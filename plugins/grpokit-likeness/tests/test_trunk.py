"""The head on features of LPIPS with the real weights of AlexNet (`make weights`)."""

import lpips_trunks
import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageFilter

from grpokit_likeness.features import features
from grpokit_likeness.head import Head, right_share
from grpokit_lpips.trunk import CHECKPOINTS


def _crops(name):
    whole = Image.fromarray(getattr(skimage.data, name)()).convert("RGB").resize((384, 384))
    return [whole.crop((x, y, x + 128, y + 128)) for x in (0, 128, 256) for y in (0, 128, 256)]


@pytest.mark.very_slow
def test_real_weights_tell_a_style_on_pictures_of_other_things(tmp_path):
    """It learns blurred from sharp on an astronaut and a cat, and tells them on coffee and a rocket."""
    weights = lpips_trunks.package()
    if weights is None:
        pytest.skip("needs the packages of requirements-weights.txt")
    lpips_trunks.write(weights, tmp_path)
    file = tmp_path / "hub" / "checkpoints" / CHECKPOINTS["alex"]
    look = features("lpips", reward="test", weights_path=file, device="cpu")
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
