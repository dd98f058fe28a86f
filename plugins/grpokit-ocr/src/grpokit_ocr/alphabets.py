"""The letters that a language needs beyond a-z, to see whether a recogniser can write it at all.

A recogniser lists the characters that it knows; a language is there when all of its letters are. That says nothing of
how well it is read, but refuses what can never be read. Codes are those of the package rapidocr.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

LETTERS: dict[str, str] = {
    "ar": "ابتحدرسعقمهي",
    "be": "абвўі",
    "bg": "абвжщъ",
    "ca": "àçèéíïòóúü",
    "ch": "汉语简体中国",
    "chinese_cht": "漢語繁體中國",
    "cs": "áčďéěíňóřšťúůýž",
    "cy": "âêîôûŵŷ",
    "da": "æøå",
    "de": "äöüß",
    "el": "αβγδεάέήίόύώς",
    "en": "",
    "es": "áéíñóúü",
    "et": "äõöüšž",
    "fi": "äö",
    "fr": "àâæçèéêëîïôœùûü",
    "hi": "अआकखगतनमरह",
    "hr": "čćđšž",
    "hu": "áéíóöőúüű",
    "is": "áðéíóöúýþæ",
    "it": "àèéìòù",
    "japan": "あいうアイウ日本語",
    "korean": "가나다라한국어",
    "lt": "ąčėęįšųūž",
    "lv": "āčēģīķļņšūž",
    "nl": "ëï",
    "no": "æøå",
    "pl": "ąćęłńóśźż",
    "pt": "áâãàçéêíóôõú",
    "ro": "ăâîșț",
    "ru": "абвгджщыэюя",
    "sk": "áäčďéíĺľňóôŕšťúýž",
    "sl": "čšž",
    "sv": "åäö",
    "ta": "அஆகதநமர",
    "te": "అఆకగతనమర",
    "th": "กขคงจฉชซ",
    "tr": "çğıöşü",
    "uk": "абвґєії",
    "vi": "ăâđêôơưạảấ",
}


def missing_letters(language: str, known: Collection[str]) -> str:
    """The letters of a language in `LETTERS`, small and capital, that are not in `known`, in order."""
    letters = LETTERS[language]
    wanted: Iterable[str] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + letters
    capitals = (letter.upper() for letter in letters)  # of some the capital is two letters, as of ß: nothing to ask for
    single = (letter for letter in [*wanted, *capitals] if len(letter) == 1)
    return "".join(dict.fromkeys(letter for letter in single if letter not in known))
