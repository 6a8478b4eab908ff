#!/usr/bin/env python3
"""Check quantised folders against the public Python readers of their formats.

    check_checkpoints.py QUERN FOLDER...

For every folder: reads the tensors with `safetensors`, dequantises each linear
weight with the readers' own code (compressed-tensors' decompressors; the
multiplication transformers and vLLM use for fine-grained FP8), and compares with
what `quern` decodes (`quern quantize FOLDER TMP --weights f32`). Then opens the
folder as `transformers` does and compares the weights the model got. Run by hand;
needs numpy, torch, safetensors, transformers, compressed-tensors. The results are
recorded in docs/quantize.md.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open


def read_folder(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(folder, name), framework="pt") as f:
                for key in f.keys():
                    tensors[key] = f.get_tensor(key)
    return tensors


def ulp_distance(a, b):
    """Largest distance of two f32 tensors in units in the last place."""
    def ordered(x):
        i = x.contiguous().view(torch.int32).to(torch.int64)
        return torch.where(i < 0, -(i & 0x7FFFFFFF), i)
    return int((ordered(a) - ordered(b)).abs().max()) if a.numel() else 0


def fp8_block(weight, scale_inv):
    """weight * scale_inv of its 128x128 block, in f32 (edge blocks are short)."""
    rows = torch.arange(weight.shape[0]) // 128
    columns = torch.arange(weight.shape[1]) // 128
    return weight.to(torch.float32) * scale_inv[rows][:, columns]


def fp4_values(packed):
    """compressed-tensors' unpacking, in f32."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    m, n = packed.shape
    return unpack_fp4_from_uint8(packed, m, n * 2).to(torch.float32)


def compressed_tensors_dequantize(stem, tensors, scheme):
    """The f32 weight by compressed-tensors' arithmetic, and by its registered decompressor."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    state = {k[len(stem) + 1:]: v for k, v in tensors.items() if k.startswith(stem + ".")}
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    native = compressor.decompress(dict(state), scheme)["weight"]
    if "weight_packed" in state:
        scale = compressor._decompress_scale(state["weight_scale"], torch.float32)
        full = dequantize(x_q=fp4_values(state["weight_packed"]), scale=scale, args=scheme.weights,
                          global_scale=state.get("weight_global_scale"), dtype=torch.float32)
    else:
        full = dequantize(x_q=state["weight"], scale=state["weight_scale"].to(torch.float32), args=scheme.weights,
                          dtype=torch.float32)
    return full, native


def check_weights(folder, decoded):
    """(linear weights, equal bit for bit in f32, largest ulp distance, equal in the reader's own dtype)."""
    config = json.load(open(os.path.join(folder, "config.json")))
    quantization = config.get("quantization_config")
    tensors = read_folder(folder)
    count = equal = native_equal = 0
    worst = 0
    for name, mine in sorted(decoded.items()):
        if not name.endswith(".weight"):
            continue
        stem = name[:-len(".weight")]
        if quantization is None or (stem + ".weight_scale" not in tensors and stem + ".weight_scale_inv" not in tensors):
            theirs = tensors[name].to(torch.float32)
            native = tensors[name]
        elif quantization["quant_method"] == "fp8":
            theirs = native = fp8_block(tensors[name], tensors[stem + ".weight_scale_inv"])
        else:
            from compressed_tensors.quantization import QuantizationConfig
            parsed = QuantizationConfig.model_validate(quantization)
            scheme = next(iter(parsed.config_groups.values()))
            if scheme.format is None:
                scheme.format = parsed.format
            theirs, native = compressed_tensors_dequantize(stem, tensors, scheme)
        count += 1
        assert theirs.shape == mine.shape, (name, theirs.shape, mine.shape)
        distance = ulp_distance(theirs, mine)
        worst = max(worst, distance)
        equal += distance == 0
        native_equal += torch.equal(native.to(torch.float32), mine.to(native.dtype).to(torch.float32))
    return count, equal, worst, native_equal


def check_transformers(folder, decoded):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The quick brown fox jumps over the lazy dog, 1234 times."
    if tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) != text:
        return "tokenizer does not round-trip"
    try:
        model = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits
    except Exception as e:  # a reader's refusal is a finding, not a crash
        return "no: " + " ".join(str(e).split())[:90]
    if not torch.isfinite(logits).all():
        return "no: non-finite logits"
    state = model.state_dict()
    same = total = 0
    for name, mine in decoded.items():
        if name in state and state[name].dtype.is_floating_point and state[name].element_size() >= 2:
            total += 1
            same += torch.equal(state[name].to(torch.float32), mine.to(state[name].dtype).to(torch.float32))
    return f"loads, runs; {same} of {total} plain or decompressed weights equal"


def main():
    quern, folders = sys.argv[1], sys.argv[2:]
    print("| folder | weights | f32 bit-equal | largest distance (ulp) | equal in reader's dtype | transformers |")
    print("|---|---|---|---|---|---|")
    failed = False
    for folder in folders:
        with tempfile.TemporaryDirectory() as tmp:
            out = os.path.join(tmp, "f32")
            subprocess.run([quern, "quantize", folder, out, "--weights", "f32"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            decoded = read_folder(out)
        count, equal, worst, native = check_weights(folder, decoded)
        failed |= worst > 1
        print(f"| {os.path.basename(folder.rstrip('/'))} | {count} | {equal} | {worst} | {native} | "
              f"{check_transformers(folder, decoded)} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
