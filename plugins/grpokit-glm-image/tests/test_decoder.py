"""The decoder's pictures are the stock pipeline's, and follow from tokens, prompt and seeds alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline
from PIL import Image, ImageStat

from grpokit import Prompt, Seeds, UsageError
from grpokit.sampling import derive_seeds, normals
from grpokit_glm_image.decoder import Decoder, DecodeSettings
from grpokit_glm_image.grids import Grid, Target
from grpokit_glm_image.painter import Painter
from grpokit_glm_image.source_pictures import source_codes
from grpokit_glm_image.tiny import CODES, tiny_pipeline

PLAIN, GLYPHS = Prompt(text="a cat"), Prompt(text='a sign "OPEN" and below it "late"')
TARGET = Target(draft=Grid(rows=3, columns=4), large=Grid(rows=2, columns=3))
EDIT = Target(draft=None, large=Grid(rows=2, columns=3))
HEIGHT, WIDTH = 64, 96
FAST = DecodeSettings(steps=2)


@pytest.fixture(scope="module")
def pipeline() -> GlmImagePipeline:
    pipeline = tiny_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def typed(request: pytest.FixtureRequest) -> GlmImagePipeline:
    """A pipeline whose decoder is in either type."""
    pipeline = tiny_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder):
        torch.nn.Module.to(part, request.param)
    return pipeline


@pytest.fixture(scope="module")
def decoder(pipeline: GlmImagePipeline) -> Decoder:
    return Decoder(Painter(pipeline))


def seeds_of(prompts: int, group_size: int) -> Seeds:
    return derive_seeds(7, stream="train", step=3, prompts=prompts, group_size=group_size)


def tokens_of(rows: int, target: Target = TARGET) -> torch.Tensor:
    return torch.randint(0, CODES, (rows, target.count), generator=torch.Generator().manual_seed(1))


def numbers(pictures: Sequence[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(picture) for picture in pictures]).astype(int)


def difference(ours: Sequence[Image.Image], others: Sequence[Image.Image]) -> int:
    """The largest difference of two pixels, of 255."""
    return int(np.abs(numbers(ours) - numbers(others)).max())


def stock(pipeline: GlmImagePipeline, prompt: Prompt, codes: torch.Tensor, noise: torch.Tensor, **options: Any) -> Any:
    """The stock pipeline's pictures of codes [n, h, w]."""
    rows, columns = codes.shape[1:]
    prior = torch.cat([pipeline._upsample_token_ids(own, rows, columns) for own in codes])
    settings = {"height": rows * 32, "width": columns * 32, "num_inference_steps": 2, **options}
    texts = [prompt.text] * len(codes)
    return pipeline(prompt=texts, prior_token_ids=prior, latents=noise, **settings).images


@pytest.mark.parametrize("prompt", [PLAIN, GLYPHS], ids=["plain", "glyphs"])
@pytest.mark.parametrize("noise", ["group", "row"])
@pytest.mark.parametrize(("steps", "guidance"), [(1, 1.5), (4, 1.0), (3, 4.0)])
def test_pictures_are_those_of_the_stock_pipeline(
    typed: GlmImagePipeline, prompt: Prompt, noise: Any, steps: int, guidance: float
) -> None:
    decoder = Decoder(Painter(typed))
    settings, seeds, tokens = DecodeSettings(steps=steps, guidance=guidance, noise=noise), seeds_of(1, 3), tokens_of(3)
    ours = decoder.pictures(tokens, [prompt], seeds=seeds, settings=settings, target=TARGET)
    start = decoder.noise(seeds.row if noise == "row" else seeds.group, HEIGHT, WIDTH).expand(3, -1, -1, -1)
    codes = tokens[:, -6:].view(3, 2, 3)
    theirs = stock(typed, prompt, codes, start, num_inference_steps=steps, guidance_scale=guidance)
    assert difference(ours, theirs) == 0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("it's a dog's life", ""),
        ("a dog's „Wau“", '"Wau"'),
        ("«thé» and 'tea'", '"thé" "tea"'),
        ("「茶」", '"茶"'),
    ],
)
def test_what_is_painted_letter_by_letter_is_what_ocr_reads(
    pipeline: GlmImagePipeline, decoder: Decoder, text: str, same: str
) -> None:
    """The stock pipeline takes `s a dog` for a quote, and leaves „...“ and «...» out."""
    told = decoder.painter.told(Prompt(text=text), torch.zeros(1, 4), (64, 64))
    with torch.no_grad():
        glyphs = pipeline.encode_prompt(same, do_classifier_free_guidance=False)[0]
    assert torch.equal(told.glyphs, glyphs)


def test_a_draft_is_decoded_from_its_own_tokens_at_its_own_size(pipeline: GlmImagePipeline, decoder: Decoder) -> None:
    seeds, tokens = seeds_of(1, 2), tokens_of(2)
    settings = replace(FAST, tokens="draft")
    ours = decoder.pictures(tokens, [GLYPHS], seeds=seeds, settings=settings, target=TARGET)
    assert [picture.size for picture in ours] == [(128, 96)] * 2
    noise = decoder.noise(seeds.group, 96, 128).expand(2, -1, -1, -1)
    assert difference(ours, stock(pipeline, GLYPHS, tokens[:, :12].view(2, 3, 4), noise)) == 0


def test_a_smaller_picture_shows_the_same_tokens_coarser(decoder: Decoder) -> None:
    """At half size a token has one of the transformer's, and 2 x 2 equal ones are a token of a grid half as large."""
    wide = Target(draft=None, large=Grid(rows=2, columns=4))
    tokens = torch.tensor([[1, 1, 2, 2, 1, 1, 2, 2]])
    settings = replace(FAST, size=[32, 64])
    small = decoder.pictures(tokens, [PLAIN], seeds=seeds_of(1, 1), settings=settings, target=wide)
    half = Target(draft=None, large=Grid(rows=1, columns=2))
    same = decoder.pictures(torch.tensor([[1, 2]]), [PLAIN], seeds=seeds_of(1, 1), settings=FAST, target=half)
    assert small[0].size == (64, 32)
    assert difference(small, same) == 0


def test_rewards_may_see_a_shrunk_picture(decoder: Decoder) -> None:
    target = Target(draft=None, large=Grid(rows=2, columns=4))
    tokens = torch.arange(8)[None]
    whole, shrunk = (
        decoder.pictures(tokens, [PLAIN], seeds=seeds_of(1, 1), settings=settings, target=target)[0]
        for settings in (FAST, replace(FAST, reward_size=[16, 32]))
    )
    assert (whole.size, shrunk.size) == ((128, 64), (32, 16))
    assert abs(ImageStat.Stat(whole).mean[0] - ImageStat.Stat(shrunk).mean[0]) < 2


def test_a_picture_with_numbers_that_are_not_finite_is_none(
    decoder: Decoder, pipeline: GlmImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = lambda latents, **_: (latents.new_full((len(latents), 3, 64, 128), torch.nan),)  # noqa: E731
    monkeypatch.setattr(pipeline.vae, "decode", broken)
    target, settings = Target(draft=None, large=Grid(rows=2, columns=4)), replace(FAST, reward_size=[16, 32])
    with pytest.warns(UserWarning, match="AutoencoderKL in float32 gave numbers that are not finite"):
        pictures = decoder.pictures(
            torch.arange(8).expand(3, -1), [PLAIN], seeds=seeds_of(1, 3), settings=settings, target=target
        )
    assert pictures == [None] * 3


def test_the_stock_pipelines_own_tokens_give_its_own_picture(pipeline: GlmImagePipeline, decoder: Decoder) -> None:
    seeds = seeds_of(1, 1)
    noise = decoder.noise(seeds.group, HEIGHT, WIDTH)
    written: list[torch.Tensor] = []
    generate = pipeline.vision_language_encoder.generate
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(
            pipeline.vision_language_encoder,
            "generate",
            lambda **inputs: (
                written.append(generate(**inputs)[:, inputs["input_ids"].shape[1] :])
                or torch.cat([inputs["input_ids"], written[0]], 1)
            ),
        )
        torch.manual_seed(0)
        theirs = pipeline(GLYPHS.text, height=HEIGHT, width=WIDTH, num_inference_steps=2, latents=noise).images
    own = Target(draft=Grid(rows=13, columns=19), large=Grid(rows=2, columns=3))  # the processor's rule for 2 x 3
    ours = decoder.pictures(written[0][:, : own.count], [GLYPHS], seeds=seeds, settings=FAST, target=own)
    assert difference(ours, theirs) == 0


@pytest.mark.parametrize("noise", ["group", "row"])
def test_a_batch_equals_its_rows(decoder: Decoder, noise: Any) -> None:
    """Two prompts of different glyph length, which in one batch would change each other's pictures."""
    prompts, seeds, tokens = [PLAIN, GLYPHS], seeds_of(2, 4), tokens_of(8)
    settings = replace(FAST, noise=noise)
    together = decoder.pictures(tokens, prompts, seeds=seeds, settings=settings, target=TARGET)
    few = decoder.pictures(tokens, prompts, seeds=seeds, settings=replace(settings, rows=3), target=TARGET)
    for row in range(8):
        group = slice(row // 4, row // 4 + 1)
        own = replace(seeds, row=seeds.row[row : row + 1], group=seeds.group[group], group_ids=seeds.group_ids[group])
        alone = decoder.pictures(tokens[row : row + 1], prompts[group], seeds=own, settings=settings, target=TARGET)
        assert difference(alone, together[row : row + 1]) <= 1
    assert difference(few, together) <= 1


@pytest.mark.parametrize(("tokens", "changed"), [("large", TARGET.count - 1), ("draft", 0)])
def test_a_token_of_the_decoded_grid_changes_the_picture_and_no_other_does(
    decoder: Decoder, tokens: Any, changed: int
) -> None:
    one = tokens_of(1)
    settings = replace(FAST, tokens=tokens)

    def picture(of: torch.Tensor) -> list[Image.Image]:
        return decoder.pictures(of, [PLAIN], seeds=seeds_of(1, 1), settings=settings, target=TARGET)

    other, unread = one.clone(), one.clone()
    other[0, changed] = (other[0, changed] + 1) % CODES
    unread[0, TARGET.count - 1 - changed] = (unread[0, TARGET.count - 1 - changed] + 1) % CODES
    assert difference(picture(one), picture(other)) > 20
    assert difference(picture(one), picture(unread)) == 0


def test_seeds_decide_the_noise_and_the_global_random_state_is_left_alone(decoder: Decoder) -> None:
    tokens = tokens_of(1).expand(4, -1)
    seeds = derive_seeds(1, stream="train", step=0, prompts=2, group_size=2)

    def pictures(seeds: Seeds, noise: Any) -> list[Image.Image]:
        settings = replace(FAST, noise=noise)
        return decoder.pictures(tokens, [PLAIN, PLAIN], seeds=seeds, settings=settings, target=TARGET)

    state = torch.get_rng_state()
    shared, own = pictures(seeds, "group"), pictures(seeds, "row")
    torch.manual_seed(5)
    assert difference(shared, pictures(seeds, "group")) == 0
    torch.set_rng_state(state)
    assert difference(own, pictures(seeds, "row")) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert difference(shared[:1], shared[1:2]) <= 1  # the same tokens, noise and prompt
    assert difference(shared[1:2], shared[2:3]) > 20  # of another group
    assert difference(own[:1], own[1:2]) > 20
    other = replace(seeds, row=seeds.row + 1)
    assert difference(own, pictures(other, "row")) > 20
    assert difference(shared, pictures(other, "group")) == 0


def test_noise_is_standard_normal_and_not_that_of_the_tokens(decoder: Decoder) -> None:
    seeds = torch.arange(4)
    noise = decoder.noise(seeds, 256, 256)
    assert noise.shape == (4, 4, 32, 32)
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    draws = normals(seeds, 4096).float()
    assert abs((noise.flatten(1) * draws).mean()) < 0.05


def test_autocast_does_not_reach_the_decoder(pipeline: GlmImagePipeline, decoder: Decoder) -> None:
    def picture() -> list[Image.Image]:
        return decoder.pictures(tokens_of(1), [GLYPHS], seeds=seeds_of(1, 1), settings=FAST, target=TARGET)

    plain = picture()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert difference(picture(), plain) == 0
        fresh = Decoder(Painter(pipeline)).pictures(
            tokens_of(1), [GLYPHS], seeds=seeds_of(1, 1), settings=FAST, target=TARGET
        )
    assert difference(fresh, plain) == 0


def sources(count: int) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 255, (64, 96 - 32 * i, 3), dtype=np.uint8)) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2])
def test_edits_are_those_of_the_stock_pipeline(typed: GlmImagePipeline, count: int) -> None:
    pipeline, decoder, pictures = typed, Decoder(Painter(typed)), sources(count)
    prompt = Prompt(text='now with the word "RED"', images=pictures)
    codes = [source_codes(pipeline.vision_language_encoder, pipeline.processor, picture) for picture in pictures]
    seeds, tokens = seeds_of(1, 3), tokens_of(3, EDIT)
    ours = decoder.pictures(tokens, [prompt], seeds=seeds, settings=FAST, target=EDIT, source_codes=[codes])
    grids = torch.tensor([[1, picture.height // 16, picture.width // 16] for picture in pictures])
    shapes = [(picture.height // 32, picture.width // 32) for picture in pictures]
    prior = [pipeline._upsample_token_ids(own, *shape)[0] for own, shape in zip(codes, shapes, strict=True)]
    noise = decoder.noise(seeds.group, HEIGHT, WIDTH).expand(3, -1, -1, -1)
    theirs = stock(
        pipeline,
        prompt,
        tokens.view(3, 2, 3),
        noise,
        image=[pictures] * 3,
        prior_token_image_ids=[torch.cat(prior)] * 3,
        source_image_grid_thw=[grids] * 3,
    )
    assert difference(ours, theirs) == 0
    blind = decoder.pictures(tokens, [Prompt(text=prompt.text)], seeds=seeds, settings=FAST, target=EDIT)
    assert difference(ours, blind) > 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": 4}, r"decode has no key 'step' \(did you mean 'steps'\?\)"),
        ([], "decode must be a mapping such as {steps: 10"),
        ({"steps": 0}, "decode: steps must be at least 1, got 0"),
        ({"steps": 1001}, "decode: steps must be at most 1,000"),
        ({"guidance": 0.5}, "decode: guidance must be at least 1, got 0.5"),
        ({"tokens": "small"}, "decode: tokens must be 'large' or 'draft', got 'small'"),
        ({"noise": "rows"}, r"decode: noise must be 'group' or 'row', got 'rows' \(did you mean 'row'\?\)"),
        ({"rows": 0}, "decode: rows must be at least 1, or None"),
        ({"reward_size": [0, 64]}, r"decode: reward_size must be height and width in pixels"),
        ({"size": [100, 100]}, r"decode: size must be .* multiples of 32.*The nearest is \[96, 96\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DecodeSettings.read(given, key="decode")


def test_steps_have_a_default_of_their_own_in_training() -> None:
    assert DecodeSettings.read({}, key="decode") == DecodeSettings(steps=50, guidance=1.5)
    assert DecodeSettings.read({"guidance": 1}, key="decode", steps=20) == DecodeSettings(steps=20, guidance=1)
    assert DecodeSettings.read({"steps": 3}, key="decode", steps=20).steps == 3


def test_a_size_that_would_distort_the_picture_is_refused() -> None:
    assert DecodeSettings(size=[256, 384]).resolution(TARGET) == (256, 384)
    with pytest.raises(UsageError, match="size is 256 x 256, and the large grid's picture has the shape of 64 x 96"):
        DecodeSettings(size=[256, 256]).resolution(TARGET)
    with pytest.raises(UsageError, match="tokens is 'draft', and an edit has no draft"):
        DecodeSettings(tokens="draft").resolution(EDIT)
