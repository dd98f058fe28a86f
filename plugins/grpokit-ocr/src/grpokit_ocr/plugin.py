"""Announces the reward `ocr` and the evaluation `text-rendering` to grpokit.

A light module: it imports only grpokit. The reward's own module, and the engine's with what it needs, are imported
when a run asks for the reward; a missing dependency then ends in the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import Asset, EvaluationSpec, RewardSpec, hookimpl

_FILE = "eng.traineddata"
TESSERACT = Asset(
    name="Tesseract's data for English, for engine: tesseract",
    paths=[
        f"$TESSDATA_PREFIX/{_FILE}",
        *(f"/usr/{folder}/tessdata/{_FILE}" for folder in ("share/tesseract-ocr/5", "share", "local/share")),
        f"/opt/homebrew/share/tessdata/{_FILE}",
    ],
    fetch="apt-get install tesseract-ocr-eng, or on a Mac: brew install tesseract",
    module="tesserocr",
)


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the reward `ocr`."""
    yield RewardSpec(
        api=1,
        name="ocr",
        factory="grpokit_ocr.reward:OCRReward",
        summary="how well the picture shows the text that its prompt has in quotes",
        accepts={"image"},
        range=(0.0, 1.0),
        install="pip install 'grpokit[ocr]'",
        examples="grpokit_ocr.examples:pairs",
        unscorable="grpokit_ocr.targets:unscorable",
        assets=[TESSERACT],
    )


@hookimpl
def grpokit_evaluations() -> Iterator[EvaluationSpec]:
    """Yield `text-rendering`."""
    yield EvaluationSpec(
        api=1,
        name="text-rendering",
        factory="grpokit_ocr:evaluations/text-rendering.yaml",
        summary="word accuracy and edit distance of quoted text, English and Chinese, from a word to several lines",
        install="pip install 'grpokit[ocr]'",
    )
