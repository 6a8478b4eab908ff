#!/usr/bin/env python3
"""Make the golden files of the tokenizer tests.

    make_golden.py MODEL.gguf

writes, beside itself:
  lines.txt         10,000 lines from a seeded generator; backslash, line feed and carriage return are written
                    \\\\, \\n, \\r, and a byte that UTF-8 text should not show as \\xHH
  smollm2.golden    hashes and ids of MODEL's tokenizer over those lines
Needs the packages tokenizers and gguf. The tokenizer is put together here from the arrays of the file, by the
published rule of the model family (each digit alone, then the byte-level split), and not by Quern.
"""
import os
import random
import struct
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))

WORDS = """the of and to in a is that it was for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my made over
did down only way find use may water long little very after words called just where most know quantised kernel llama
antidisestablishmentarianism tokenizer Straße café naïve coöperate fiancée Zürich I'm you're they've he'll she'd it's
don't can't won't I'M YOU'RE THEY'VE HE'LL it’s rock'n'roll o'clock 'tis ’twas""".split()
SCRIPTS = {
    "cjk": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从",
    "kana": "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをんアイウエオカキクケコガギグゲゴパピプペポー、。「」",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأؤإئىةپچژگ٠١٢٣٤٥٦٧٨٩،؟",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह०१२३४५६७८९ािीुूेैोौं्।",
    "thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหอฮะาิีึืุูเแโใไ่้๊๋์ๆ๐๑๒๓๔๕๖๗๘๙",
    "cyrillic": "абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯіїєґ",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשתךםןףץ־׳״ְִֵֶַָׂ",
    "korean": "가나다라마바사아자차카타파하각난닫랄맘밥삿앙잦찿칵탙팦핳안녕하세요감사합니다한국어",
    "greek": "αβγδεζηθικλμνξοπρστυφχψωΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩάέήίόύώ",
    "georgian": "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ",
    "tamil": "அஆஇஈஉஊஎஏஐஒஓஔகஙசஞடணதநபமயரலவழளறனாிீுூெேைொோௌ்",
    "ethiopic": "ሀሁሂሃሄህሆለሉሊላሌልሎመሙሚማሜምሞ፩፪፫፬፭",
}
EMOJI = ["😀", "😂", "🤣", "❤️", "👍", "👍🏽", "🙏🏿", "🎉", "🔥", "👨‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🏴‍☠️", "🇩🇪", "🇯🇵", "🇺🇸", "1️⃣",
         "#️⃣", "☺", "☺️", "🧑‍🚀", "🫠", "🦾", "👩‍❤️‍💋‍👨", "🏴\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "⚕️", "🧜🏻‍♀️"]
SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", " \t ", "\u00a0", "\u3000", "\u2003", "\u2009", "\u200b", "\u202f",
          "\u1680", "\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u180e",
          "\ufeff", "\u205f", "\u200a\u2000"]
DIGITS = "0123456789"
ODD_NUMBERS = "²³¹½¼Ⅳⅷ①⑳㈠㊿٣४๔𝟘𝟙𝟚፫〇一二三௧௨৯"
MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u0328\u0331\u0338\u20dd\u0483\u064b\u0651\u05b0\u0e47\u3099"
PUNCT = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”‘’–—…¡¿§¶†‡•°±×÷€£¥©®™→←↑↓⇒∀∃∈∑∏√∞≈≠≤≥␣█▓░"
CODE = ["def f(x):", "return x**2", "for (int i = 0; i < n; i++) {", "}", "#include <stdio.h>", "std::vector<int> v;",
        "x = [i for i in range(10)]", "if (a && b || !c)", "/* comment */", "// TODO: fix", "const auto& it = m.find(k);",
        "SELECT * FROM t WHERE id = 42;", "<div class=\"a\">&nbsp;</div>", "git commit -m 'msg'", "0xDEADBEEF", "1e-5f",
        "lambda: None", "printf(\"%d\\n\", n);", "{\"key\": [1, 2.5, null]}", "https://example.org/a?b=c&d=%20#e",
        "a->b.c[d]", "\tindented", "        eight", "i+=1;j--;", "$HOME/${x:-y}", "fn main() -> Result<(), E> {", "@decorator"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<empty_output>", "<|im_", "|>",
           "<|im_start|", "<jupyter_code>"]


def make_lines(count=10000, seed=20240607):
    r = random.Random(seed)

    def script_word(chars):
        return "".join(r.choice(chars) for _ in range(r.randint(1, 7)))

    def number():
        k = r.randint(0, 5)
        if k == 0:
            return "".join(r.choice(DIGITS) for _ in range(r.randint(1, 15)))
        if k == 1:
            return f"{r.randint(0, 9999)}.{r.randint(0, 999)}"
        if k == 2:
            return f"{r.randint(1, 999)},{r.randint(0, 999):03d}"
        if k == 3:
            return f"{r.randint(1900, 2100)}-{r.randint(1, 12):02d}-{r.randint(1, 31):02d}"
        if k == 4:
            return "".join(r.choice(ODD_NUMBERS + DIGITS) for _ in range(r.randint(1, 6)))
        return f"{r.randint(-99, 99)}%"

    def any_char():
        while True:
            c = r.choice((r.randint(0x20, 0x2FF), r.randint(0x300, 0x2FFF), r.randint(0x3000, 0xFFFD),
                          r.randint(0x10000, 0x1FFFF)))
            if not 0xD800 <= c <= 0xDFFF and assigned(c):
                return chr(c)

    def assigned(c):
        # Unicode 3.2, known alike to every engine: what differs by version is tested on its own.
        import unicodedata
        return unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Co")

    def sentence():
        words = [r.choice(WORDS) for _ in range(r.randint(3, 12))]
        if r.random() < 0.5:
            words[0] = words[0].capitalize()
        return " ".join(words) + r.choice([".", "!", "?", "", "...", ";", ":"])

    def line():
        k = r.randint(0, 15)
        if k <= 2:
            return sentence()
        if k == 3:
            return r.choice(["", "    ", "\t"]) + " ".join(r.choice(CODE) for _ in range(r.randint(1, 2)))
        if k <= 6:
            chars = SCRIPTS[r.choice(sorted(SCRIPTS))]
            return r.choice(["", " "]) + r.choice([" ", "", "、", "، "]).join(script_word(chars) for _ in range(r.randint(1, 6)))
        if k == 7:
            return r.choice(["", " "]).join(r.choice(EMOJI) for _ in range(r.randint(1, 5))) + r.choice(["", " ok", "!"])
        if k == 8:
            return "".join(r.choice(WORDS + SPACES + SPACES) for _ in range(r.randint(2, 9)))
        if k == 9:
            return r.choice(["", " ", "  "]).join(number() for _ in range(r.randint(1, 5)))
        if k == 10:
            return "".join(r.choice(WORDS)[: r.randint(1, 4)] + r.choice(MARKS) * r.randint(1, 3) for _ in range(r.randint(1, 5)))
        if k == 11:
            return "".join(chr(r.randint(1, 0x1F)) if r.random() < 0.4 else r.choice("ab \x7f\x80\x9f") for _ in range(r.randint(1, 10)))
        if k == 12:
            return r.choice([" ", "a", "=", "-", "\t", "0", "漢", "é", "\n", "ab", "😀", "ا"]) * r.randint(1, 60) + r.choice(["", "x", " y"])
        if k == 13:
            return "".join(r.choice(PUNCT) for _ in range(r.randint(1, 12))) + r.choice(["", " " + r.choice(WORDS)])
        if k == 14:
            parts = [sentence(), number(), r.choice(EMOJI), script_word(SCRIPTS[r.choice(sorted(SCRIPTS))]), r.choice(SPACES), r.choice(SPECIAL), r.choice(CODE)]
            r.shuffle(parts)
            return r.choice(["", " "]).join(parts[: r.randint(2, 5)])
        return "".join(any_char() for _ in range(r.randint(1, 12)))

    return [line() for _ in range(count)]


def escape(text):
    out = []
    for c in text:
        if c == "\\":
            out.append("\\\\")
        elif c == "\n":
            out.append("\\n")
        elif c == "\r":
            out.append("\\r")
        elif ord(c) < 0x20 or ord(c) == 0x7F:
            out.append(f"\\x{ord(c):02X}")
        else:
            out.append(c)
    return "".join(out)


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def line_bytes(ids):
    """Ids as int32 little endian and -1 after each line."""
    return b"".join(struct.pack("<i", i) for i in [*ids, -1])


def read_vocab(path):
    fields = GGUFReader(path).fields

    def strings(name):
        f = fields[name]
        return [bytes(f.parts[i]).decode("utf-8") for i in f.data]

    f = fields["tokenizer.ggml.token_type"]
    types = [int(f.parts[i][0]) for i in f.data]
    return strings("tokenizer.ggml.tokens"), types, strings("tokenizer.ggml.merges")


def build(path, with_added=True):
    tokens, types, merges = read_vocab(path)
    vocab = {t: i for i, t in enumerate(tokens)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    if with_added:
        tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, y in zip(tokens, types) if y == 3])
    return tok


def golden_lines(all_ids):
    """Text lines: 'total HASH TOKENS', 'block N HASH' per 100 lines, 'ids N a b c' for the first 200."""
    out = []
    total = 0xCBF29CE484222325
    for i in range(0, len(all_ids), 100):
        data = b"".join(line_bytes(x) for x in all_ids[i : i + 100])
        total = fnv(data, total)
        out.append(f"block {i // 100} {fnv(data):016x}")
    out.insert(0, f"total {total:016x} {sum(map(len, all_ids))}")
    out += [" ".join(["ids", str(i), *map(str, x)]) for i, x in enumerate(all_ids[:200])]
    return out


def main():
    lines = make_lines()
    with open(os.path.join(HERE, "lines.txt"), "w", encoding="utf-8", newline="\n") as f:
        f.write("".join(escape(x) + "\n" for x in lines))
    parsed = [e.ids for e in build(sys.argv[1]).encode_batch(lines)]
    plain = [e.ids for e in build(sys.argv[1], with_added=False).encode_batch(lines)]
    with open(os.path.join(HERE, "smollm2.golden"), "w", encoding="utf-8", newline="\n") as f:
        f.write("# ids with special tokens parsed\n" + "".join(x + "\n" for x in golden_lines(parsed)))
        f.write("# ids with special tokens as plain text\n" + "".join("plain-" + x + "\n" for x in golden_lines(plain)[:101]))


if __name__ == "__main__":
    main()
