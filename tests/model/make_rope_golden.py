"""Makes tests/model/rope.safetensors: one small llama model under every RoPE scaling, by an independent implementation.

    python make_rope_golden.py OUT.safetensors

Network: transformers' LlamaForCausalLM on the CPU, eager attention, float64 (its rotary table is float32). The file holds
    weight.NAME     BF16        the model's weights, the same for all
    ids             I32[T]
    config.SCHEME   U8[]        config.json with rope_scaling, as checkpoints have it
    saved.SCHEME    U8[]        the same as transformers writes it today (rope_parameters)
    logits.SCHEME   F32[N,V]    of every STRIDE-th position of the first T tokens, or of as many as the context has
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS, STRIDE, ORIGINAL, CONTEXT, PAIRS = 90, 3, 30, 120, 8
BASE = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=2 * PAIRS, vocab_size=40,
            max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=300.0, tie_word_embeddings=False,
            hidden_act="silu", attention_bias=False, mlp_bias=False, torch_dtype="float32", bos_token_id=1,
            eos_token_id=2)
RISING = [1.0, 1.25, 1.5, 2.0, 3.0, 4.5, 7.0, 9.0]
SCHEMES = {
    "default": None,
    "linear": dict(type="linear", factor=4.0),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=ORIGINAL),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=ORIGINAL),
    "yarn-ramp": dict(type="yarn", factor=3.5, beta_fast=8, beta_slow=0.5, attention_factor=0.9, truncate=False,
                      original_max_position_embeddings=ORIGINAL),
    "yarn-mscale": dict(rope_type="yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.3),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "longrope-short": dict(rope_type="longrope", factor=4.0, short_factor=RISING, long_factor=RISING[::-1],
                           original_max_position_embeddings=ORIGINAL),
    "longrope-same": dict(rope_type="longrope", factor=1.0, short_factor=RISING, long_factor=RISING, attention_factor=1.1,
                          original_max_position_embeddings=ORIGINAL),
}


def text(value):
    return torch.tensor(list(value.encode()), dtype=torch.uint8)


def main():
    torch.manual_seed(5)
    weights = LlamaForCausalLM(LlamaConfig(**BASE)).state_dict()
    for name, w in weights.items():
        scale = 0.5 if "q_proj" in name or "k_proj" in name else 0.2
        values = 1.0 + 0.1 * torch.randn(w.shape) if w.dim() == 1 else scale * torch.randn(w.shape)
        weights[name] = values.to(torch.bfloat16)
    ids = torch.randint(3, 40, (1, TOKENS))
    out = {f"weight.{name}": w for name, w in weights.items()}
    out["ids"] = ids[0].to(torch.int32)
    plain = None
    for scheme, rope in SCHEMES.items():
        given = dict(BASE, rope_scaling=rope)
        config = LlamaConfig.from_dict(json.loads(json.dumps(given)))
        config._attn_implementation = "eager"
        model = LlamaForCausalLM(config)
        model.load_state_dict({name: w.float() for name, w in weights.items()})
        model = model.double().eval()
        count = ORIGINAL if scheme == "longrope-short" else TOKENS
        with torch.no_grad():
            logits = model(ids[:, :count]).logits[0]
        plain = logits if plain is None else plain
        print(scheme, float(logits.abs().max()), float((logits - plain[:count]).abs().max()))
        out[f"config.{scheme}"] = text(json.dumps(given))
        out[f"saved.{scheme}"] = text(config.to_json_string())
        out[f"logits.{scheme}"] = logits[::STRIDE].float().contiguous()
    save_file(out, sys.argv[1], metadata={"stride": str(STRIDE)})


main()
