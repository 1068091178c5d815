"""Texts that tokenizers are compared on: the same ones on every machine, from a seed."""

import random
import unicodedata
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Literal

_SENTENCES = (
    "The quick brown fox doesn't jump over the lazy dog, he'd rather sleep.",
    "I'LL SAY IT'S 3.14159 — we've seen 1,234,567 of them (e.g. in 2024)!",
    "Ünïcödé façade naïve Ångström Straße ĲSSELMEER ǆ ﬁ ﬂ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "私は東京タワーに行きました。「元気？」カタカナ ｶﾀｶﾅ",
    "我能吞下玻璃而不伤身体,价格为¥128。",
    "다람쥐 헌 쳇바퀴에 타고파",
    "أَنا قادِرٌ عَلى أَكلِ الزُجاجِ ١٢٣",
    "אני יכול לאכול זכוכית וזה לא מזיק לי",
    "मैं काँच खा सकता हूँ १२३ क्षत्रिय",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ ๑๒๓",
    "ကျွန်ုပ်တို့ မြန်မာစာ",
    "ខ្ញុំអាចញុំកញ្ចក់បាន ដោយគ្មានបញ្ហា",
    "Tiếng Việt: Tôi có thể ăn thủy tinh mà không hại gì.",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ½ ² ³ Ⅷ ㊙ ™ № ℃",
)
_CODE = (
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r:>10}"\n',
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] <<= 2; // half\n}\r\n",
    "SELECT * FROM \"t\" WHERE a <> 'b' AND c >= 10;",
    '{"a": [1, 2.5e-10, null, true], "b": {"c": "\\u00e9\\n"}}',
    "<div class='x'>&nbsp;<!-- c --></div>\n\n\n<br/>",
    "git commit -m 'fix: a/b' && cd ../.. || exit 1; echo $HOME",
    "\\begin{align} x^2 &= \\frac{1}{2} \\\\ \\end{align}",
    "https://example.org/a_b?c=d&e=%20f#g user@example.org",
)
_EMOJI = (
    "😀 😃😄🥰 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵 ❤️ 1️⃣ ☃️",
    "👨🏿‍🚀🚀✨🧑‍💻",
    "👩‍❤️‍💋‍👨!?",
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u200b",
    "\x85",
)
_LITERALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_start|",
    "|im_end|>",
    "<<|im_end|>>",
    "<|im_<|im_end|>end|>",
    "</s>",
    "<s>",
    "<unk>",
    "<0x0A>",
    "[PAD151936]",
)
_FORMS: tuple[Literal["NFD", "NFKD", "NFC"], ...] = ("NFD", "NFKD", "NFC")
_PLANES = (
    (0x00, 0x7F),
    (0x80, 0x24F),
    (0x250, 0x5FF),
    (0x600, 0x1FFF),
    (0x2000, 0x2BFF),
    (0x3000, 0x9FFF),
    (0xA000, 0xD7FF),
    (0xE000, 0xFFFF),
    (0x10000, 0x1FFFF),
    (0x20000, 0x10FFFF),
)


def _words(rng: random.Random) -> str:
    words = rng.choice(_SENTENCES).split(" ")
    start = rng.randrange(len(words))
    return " ".join(words[start : start + rng.randint(1, 12)])


def _code(rng: random.Random) -> str:
    return "".join(rng.choices(_CODE, k=rng.randint(1, 2)))


def _emoji(rng: random.Random) -> str:
    text = rng.choice(_EMOJI)
    start = rng.randrange(len(text))
    return text[start : start + rng.randint(1, 8)] + rng.choice(("", " ok"))


def _spaces(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        parts.append(rng.choice(_SPACES) * rng.randint(1, 5))
        parts.append(rng.choice(("", "a", "1", ".", "é")))
    return "".join(parts)


def _digits(rng: random.Random) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.randint(1, 20)))
    return rng.choice(("", " ", "-", "$")) + digits + rng.choice(("", ".5", "%", "km", "٣", "²"))


def _decomposed(rng: random.Random) -> str:
    return unicodedata.normalize(rng.choice(_FORMS), _words(rng)) + rng.choice(
        ("", "e\u0301\u0323", "\u0308")
    )


def _unicode(rng: random.Random) -> str:
    return "".join(chr(rng.randint(*rng.choice(_PLANES))) for _ in range(rng.randint(1, 24)))


def _literals(rng: random.Random) -> str:
    parts = [rng.choice(_LITERALS) for _ in range(rng.randint(1, 3))]
    return rng.choice(("", " ", "\n", "x")).join(parts) + rng.choice(("", " user", "\n"))


def _mixed(rng: random.Random) -> str:
    parts = [rng.choice(_KINDS)(rng) for _ in range(rng.randint(2, 4))]
    return rng.choice(("", " ", "\n", "'s ", "\t")).join(parts)


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _words,
    _code,
    _emoji,
    _spaces,
    _digits,
    _decomposed,
    _unicode,
    _literals,
)


def corpus(count: int, seed: int = 0) -> Iterator[str]:
    """Yield ``count`` distinct texts: fixed ones first, then every kind in turn; no surrogates."""
    rng = random.Random(seed)
    fixed = ("", " ", *_SENTENCES, *_CODE, *_EMOJI, *_LITERALS)
    yield from fixed[:count]
    seen = set(fixed)
    for make in cycle((*_KINDS, _mixed, _mixed)):
        if len(seen) >= count:
            return
        text = make(rng)
        if text not in seen:
            seen.add(text)
            yield text
