"""The reward `ocr`: reads each picture and scores what it reads against the text that the prompt quotes.

An engine reads (`engine` builds it), `scoring` compares; this module joins them and keeps what was read, so that a
picture that comes again (in an evaluation, in a group that collapsed) is not read again.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from PIL import Image

from grpokit import Sample, UsageError
from grpokit.builtin.quotes import quotations
from grpokit.images import to_rgb
from grpokit_ocr.engine import Engine, EngineName, Layout, build
from grpokit_ocr.text_scoring import score_text, word_accuracy

Measure = Literal["text", "words"]


class OCRReward:
    """How well each picture shows the text that its prompt has in quotes; see `scoring`.

    Args:
        measure: "text": by the edit distance to each quoted text (`scoring.score_text`). "words": the share of the
            quoted words that were read (`scoring.word_accuracy`), which further text does not lower.
        extra_text_penalty: of the measure "text", in [0, 1]. 1: text that no quoted text asks for costs as much per
            letter as a wrong letter; 0: it is free, which a generator learns to exploit.
        engine: "rapidocr", "easyocr" or "tesseract"; or an object with `recognise`, for which only
            `measure`, `extra_text_penalty` and `cache_size` mean something.
        layout: "line": the picture's ink is one line of text. "page": lines are looked for, anywhere in the picture.
        languages: codes, as the engine has them; None: English (and all that rapidocr's model reads).
        device: for easyocr, as torch names it; None: a GPU if there is one. The others run on the CPU.
        threads: of rapidocr and tesseract; None: the processor cores that this process may use, at most 4.
        batch_size: the most pictures per call of rapidocr's recogniser, and the most lines of one picture per call of
            easyocr's on a GPU.
        weights_path: rapidocr: another recogniser of the PP-OCR family, as an ONNX file. easyocr: the folder with its
            weights. tesseract: the folder with its language data.
        cache_size: how many pictures' texts are kept; 0 keeps none.

    Raises:
        UsageError: a parameter is out of its range or not for this engine, or the engine's weights are not there.
        PluginError: the engine's package is not installed.
    """

    def __init__(
        self,
        *,
        measure: Measure = "text",
        extra_text_penalty: float = 1.0,
        engine: EngineName | Engine = "rapidocr",
        layout: Layout = "line",
        languages: Sequence[str] | None = None,
        device: str | None = None,
        threads: int | None = None,
        batch_size: int = 16,
        weights_path: str | Path | None = None,
        cache_size: int = 4096,
    ) -> None:
        if measure not in get_args(Measure):
            raise UsageError(f"ocr: measure must be one of {', '.join(get_args(Measure))}, got {measure!r}.")
        if not 0 <= extra_text_penalty <= 1:
            raise UsageError(f"extra_text_penalty must lie between 0 (off) and 1, got {extra_text_penalty}.")
        if cache_size < 0:
            raise UsageError(f"cache_size must be 0 (no cache) or more, got {cache_size}.")
        self.measure = measure
        self.extra_text_penalty = extra_text_penalty
        self.cache_size = cache_size
        self.engine: Engine = (
            build(
                engine,
                layout=layout,
                languages=languages,
                device=device,
                threads=threads,
                batch_size=batch_size,
                weights_path=weights_path,
            )
            if isinstance(engine, str)
            else engine
        )
        self._read: OrderedDict[bytes, list[str]] = OrderedDict()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores in [0, 1]; NaN where the prompt quotes nothing.

        Raises:
            RewardError: an output is not a picture (`grpokit.images.to_rgb`).
        """
        images = [
            to_rgb(sample.output, what=f"the output of row {row} (reward 'ocr')") for row, sample in enumerate(samples)
        ]
        asked = [i for i, sample in enumerate(samples) if quotations(sample.prompt.text)]
        scores = [math.nan] * len(samples)
        pages = self.read([images[i] for i in asked])
        for i, lines in zip(asked, pages, strict=True):
            text = samples[i].prompt.text
            if self.measure == "words":
                scores[i] = word_accuracy(text, lines)
            else:
                scores[i] = score_text(text, lines, extra_text_penalty=self.extra_text_penalty)
        return scores

    def read(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return the lines of text in each RGB picture, from the cache where it has them."""
        keys = [_content(image) for image in images]
        texts = {key: self._read[key] for key in keys if key in self._read}
        new = {key: image for key, image in zip(keys, images, strict=True) if key not in texts}
        if new:
            pages = self.engine.recognise(list(new.values()))
            texts.update(zip(new, pages, strict=True))
        for key, lines in texts.items():
            self._read[key] = lines
            self._read.move_to_end(key)
        while len(self._read) > self.cache_size:
            self._read.popitem(last=False)
        return [texts[key] for key in keys]


def _content(image: Image.Image) -> bytes:
    """What tells a picture from others."""
    data = repr(image.size).encode() + image.tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()
