#!/usr/bin/env python3
"""Make small.json, a self-made byte-level BPE tokenizer of a few hundred tokens, and small.golden, its ids over the
first 2,000 lines of lines.txt, both as the package tokenizers computes them. Needs that package only."""
import os

from make_golden import golden_lines, make_lines
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
           r"\s+(?!\S)|\s+")


def main():
    lines = make_lines()
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(lines[5000:7000], trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, show_progress=False,
                                                                 special_tokens=["<s>", "</s>"]))
    tok.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    tok.add_tokens([AddedToken("kernel", lstrip=True, normalized=True), AddedToken("llama", single_word=True, normalized=False),
                    AddedToken("==", rstrip=True, normalized=False), AddedToken("Straße", normalized=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tok.save(os.path.join(HERE, "small.json"), pretty=False)
    with open(os.path.join(HERE, "small.golden"), "w", encoding="utf-8", newline="\n") as f:
        ids = [e.ids for e in tok.encode_batch(lines[:2000])]
        f.write("# ids with special tokens parsed and added\n" + "".join(x + "\n" for x in golden_lines(ids)))


if __name__ == "__main__":
    main()
