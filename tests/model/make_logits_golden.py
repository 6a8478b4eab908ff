"""Makes tests/model/logits.safetensors: logits of an independent implementation.

    python make_logits_golden.py MODEL.gguf OUT.safetensors

Weights: the gguf package's dequantisation of every tensor, held as float64.
Network: transformers' LlamaForCausalLM, eager attention, float64 (its rotary
table is float32). Prompts: the ids below come from the model's own vocabulary,
tokenised by transformers; the file keeps them, so that the check does not
depend on any tokenizer. For each prompt p it keeps
    ids.p   I32[T]            T >= 64
    last.p  F32[V]            logits of the last position
    some.p  F32[T, ceil(V/S)] every S-th logit of every position (S = 193)
"""
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

STRIDE = 193
PROMPTS = [
    "A mill grinds slowly, and what comes out of it is finer than what went in. The miller knows the stone by its "
    "sound: when the grain runs thin the stone rings, and when it runs thick it groans. Between the two lies the work "
    "of a day, and nobody who has stood beside the hopper from dawn to dusk would call it a simple one.",
    "#include <stdio.h>\n\nint main(void)\n{\n    int sum = 0;\n    for (int i = 0; i < 100; i++) {\n        if (i % 3 == 0 "
    "|| i % 5 == 0) {\n            sum += i;\n        }\n    }\n    printf(\"%d\\n\", sum);\n    return 0;\n}\n",
    "<|im_start|>system\nYou are a careful assistant.<|im_end|>\n<|im_start|>user\nList three differences between a lake "
    "and a river, and say which of the two you would rather cross in a small wooden boat in the month of March, when the "
    "snow on the hills has begun to melt and the water is high, cold and quick, and "
    "why.<|im_end|>\n<|im_start|>assistant\n",
    "La meunière pose la main sur la pierre. Die Müllerin wartet auf den Wind. 粉屋は水の音を聞いている。 Мельник считает "
    "мешки: один, два, три, четыре, пять. The numbers 1, 2, 3, 5, 8, 13, 21, 34, 55, 89 and 144 come next.",
    "Question: A train leaves at 9:40 and arrives at 12:25. It stops for 7 minutes twice. How long was it moving?\nAnswer: "
    "From 9:40 to 12:25 is 2 hours and 45 minutes, that is 165 minutes. Two stops of 7 minutes make 14 minutes. So the "
    "train was moving for 151 minutes.\n\nQuestion: A cask holds 54 litres. One third is drawn off, then 6 litres are put "
    "back. How much is in it?\nAnswer:",
]


def main():
    folder, name = sys.argv[1].rsplit("/", 1)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    model = model.double().eval()
    out = {}
    for p, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert len(ids) >= 64, (p, len(ids))
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().numpy()
        out[f"ids.{p}"] = np.array(ids, dtype=np.int32)
        out[f"last.{p}"] = logits[-1].astype(np.float32)
        out[f"some.{p}"] = np.ascontiguousarray(logits[:, ::STRIDE]).astype(np.float32)
        print(p, len(ids), float(np.abs(logits).max()), tokenizer.decode([int(logits[-1].argmax())]))
    save_file(out, sys.argv[2], metadata={"stride": str(STRIDE)})


main()
