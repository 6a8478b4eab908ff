#!/usr/bin/env python3
"""Make marks.json, a self-made tokenizer of characters with marks for spaces (SentencePiece's form of BPE, with bytes for
characters that are no token), and marks.golden, its ids over the first 2,000 lines of lines.txt in each way that files put
the marks, both as the package tokenizers computes them. Needs that package and what make_golden.py imports."""
import json
import os

from make_golden import golden_lines, make_lines
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "\u2581"


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=split)


# name: normalizer, pre_tokenizer; tests/text/test_marks.c has the same list. "unknown" is without bytes.
WAYS = {
    "prepend": (normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None),
    "replace": (normalizers.Replace(" ", MARK), None),
    "always": (None, metaspace("always", True)),
    "first": (None, metaspace("first", False)),
    "never": (None, metaspace("never", False)),
    "nfc": (normalizers.NFC(), metaspace("first", True)),
    "unknown": (None, metaspace("always", False)),
}


def main():
    lines = make_lines()
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = metaspace("always", True)
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    tok.train_from_iterator(lines[5000:7000], trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, limit_alphabet=150, show_progress=False))
    made = json.loads(tok.to_str())
    made["added_tokens"] = [dict(a, normalized=a["content"] == "</s>") for a in made["added_tokens"]
                            if not a["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(made))
    tok.add_tokens([AddedToken("kernel", lstrip=True, normalized=True), AddedToken("llama", single_word=True, normalized=False),
                    AddedToken("==", rstrip=True, normalized=False)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    made = json.loads(tok.to_str())
    with open(os.path.join(HERE, "marks.json"), "w", encoding="utf-8", newline="\n") as f:
        json.dump({k: made[k] for k in ("model", "added_tokens", "post_processor")}, f, ensure_ascii=False,
                  separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(HERE, "marks.golden"), "w", encoding="utf-8", newline="\n") as f:
        f.write("# ids with special tokens parsed and added, for each way to put marks\n")
        for name, (normalizer, pre) in WAYS.items():
            way = dict(made, model=dict(made["model"], byte_fallback=name != "unknown"), normalizer=None, pre_tokenizer=None)
            t = Tokenizer.from_str(json.dumps(way))
            t.normalizer = normalizer
            t.pre_tokenizer = pre
            t = Tokenizer.from_str(t.to_str())
            ids = [e.ids for e in t.encode_batch(lines[:2000])]
            f.write("".join(f"{name} {x}\n" for x in golden_lines(ids)[:61]))


if __name__ == "__main__":
    main()
