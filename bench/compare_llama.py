#!/usr/bin/env python3
"""Quern beside llama.cpp: the same machine, the same run, the same threads, the nearest bits.

    pip install --no-binary llama-cpp-python llama-cpp-python    # builds llama.cpp for this machine
    bench/compare_llama.py --gguf "$(scripts/model.sh)" --work build/llama --threads 2 >results.jsonl

Both sides start from one GGUF file. llama.cpp's own quantiser rewrites it (f32, bf16, f16, q8_0, q4_0 ...), `quern
quantize` makes the folders; files that exist already in --work are used again. For every scheme the two are measured in
turn, --rounds times: a prompt of -p tokens evaluated as one batch, and -n tokens generated one by one from an empty
cache or behind --depth tokens, after a warm-up. One JSON line a scheme on stdout: the median, the lowest and the
highest round of each side and quern / llama.cpp. The first line describes the machine and both builds.

The nearest bits are those of the layers and of the head: of a model of this size the output layer is a third of what a
token reads. A scheme keeps the head as it is, 16 bits; SCHEME+int8 has it in int8. SCHEME@int8 runs with --activations
int8: llama.cpp always takes the activations of these types in 8 bits, a scale for 32. The peers' heads are f16 and bf16, or
q8_0 (in a type as q4_0+f16, what follows the plus is embedding and output). A scheme TYPE.gguf (q4_0+f16.gguf) is
llama.cpp's file of that type, which both sides run. Every peer measured has its own ratios; those
of the line are against the fastest of the peers with the nearest bits (peer), of prefill and decode each.

Nothing of Quern needs this script; without the Python package llama_cpp it says so and ends with 1. Law: no number
without the run that made it, so both sides are always measured here, never read from a file (--only skips one side).
"""
import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time

# quern scheme -> types of llama.cpp with the nearest bits in the layers
PAIRS = {
    "f32": ["f32"],
    "bf16": ["bf16", "f16"],
    "f16": ["f16"],
    "fp8-block": ["q8_0"],
    "fp8": ["q8_0"],
    "int8": ["q8_0"],
    "int8-azp": ["q8_0"],
    "nvfp4": ["nvfp4", "q4_0"],  # of 4.5 bits both
    "nvfp4-w4a4": ["nvfp4", "q4_0"],
    "mxfp4": ["mxfp4"],  # of 4.25; ...
}
OTHERS = {"mxfp4": ["q4_0"]}  # ... measured too, of 4.5
# head of a scheme -> types of embedding and output with the nearest bits, then others to be measured too
HEADS = {None: (["f16", "bf16"], ["q8_0"]), "int8": (["q8_0"], [])}
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30, "mxfp4": 39, "nvfp4": 40}  # ggml_type
FTYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
LAYERS = rb"blk.*(attn_(q|k|v|output)|ffn_(up|gate|down)).weight"  # a type of the quantiser's that no file type asks for


def note(text):
    print(text, file=sys.stderr, flush=True)


def load_llama():
    try:
        import llama_cpp
    except ImportError as error:
        note(f"skip: llama.cpp is not measured, the Python package llama_cpp is missing ({error})")
        note("      pip install --no-binary llama-cpp-python llama-cpp-python")
        return None
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.quern_keeps = quiet  # the callback must outlive every call
    llama_cpp.llama_backend_init()
    return llama_cpp


def file_type(scheme):
    """The type of a scheme that is a file of llama.cpp's, else an empty text."""
    return scheme[:-len(".gguf")] if scheme.endswith(".gguf") else ""


def is_known(scheme):
    """Whether a scheme of the command line can be compared."""
    kind, (weights, _, head) = file_type(scheme), scheme.partition("+")
    if kind:
        weights, _, head = kind.partition("+")
        return (weights in FTYPES or weights in TYPES) and (not head or head in TYPES)
    return weights in PAIRS and head in ("", "int8")


def peers_of(scheme):
    """(type, whether its bits are the nearest) of every peer."""
    if file_type(scheme):
        return [(file_type(scheme), True)]
    weights, _, head = scheme.partition("+")
    if weights in ("f32", "f16", "bf16"):
        return [(kind, True) for kind in PAIRS[weights]]
    nearest, others = HEADS[head or None]
    kinds = [(kind, True) for kind in PAIRS[weights]] + [(kind, False) for kind in OTHERS.get(weights, [])]
    return [(f"{kind}+{h}", near and h in nearest) for kind, near in kinds for h in nearest + others]


def make_gguf(llama, source, work, kind):
    """A GGUF of that type; None when llama.cpp's quantiser does not make it from this model."""
    path = os.path.join(work, kind + ".gguf")
    if os.path.exists(path):
        return path
    if not llama:
        note(f"skip: there is no {path}, and nothing to make it with")
        return None
    layers, _, head = kind.partition("+")
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, "LLAMA_FTYPE_" + FTYPES.get(layers, "MOSTLY_Q4_0"))
    if layers not in FTYPES:  # file types of FP4 leave the layers of dense models as q8_0
        entry = type(params.tt_overrides)._type_
        chosen = (entry * 2)(entry(LAYERS, TYPES[layers]), entry())
        params.tt_overrides = ctypes.cast(chosen, type(params.tt_overrides))
    if head:
        params.token_embedding_type = params.output_tensor_type = TYPES[head]
    params.allow_requantize = True
    part = path + ".part"
    if llama.llama_model_quantize(source.encode(), part.encode(), ctypes.byref(params)) != 0:
        note(f"skip: llama.cpp's quantiser does not make {kind} of {source}")
        if os.path.exists(part):
            os.remove(part)
        return None
    os.rename(part, path)
    return path


class Llama:
    """A model of llama.cpp, opened as llama-bench opens it."""

    def __init__(self, llama, path, threads, prompt, generate, depth, kv):
        self.llama, self.bytes = llama, os.path.getsize(path)
        model_params = llama.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot open {path}")
        params = llama.llama_context_default_params()
        params.n_ctx = depth + max(prompt, generate) + 32
        params.n_batch = params.n_ubatch = prompt or 512
        params.type_k = params.type_v = TYPES[kv]
        params.n_threads = params.n_threads_batch = threads
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp has no context for {path}")
        vocab = llama.llama_model_get_vocab(self.model)
        self.vocab = llama.llama_vocab_n_tokens(vocab)
        text = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.model, text, 256)
        self.description = text.value.decode()
        self.batch, self.depth, self.filled = params.n_batch, depth, False
        self.parameters = llama.llama_model_n_params(self.model)

    def decode(self, first, end, batch):
        """Evaluate tokens first to end, batch at a time."""
        llama = self.llama
        ids = [(i * 7919) % (self.vocab - 2) + 1 for i in range(first, end)]
        for at in range(0, len(ids), batch):
            part = ids[at:at + batch]
            array = (llama.llama_token * len(part))(*part)
            if llama.llama_decode(self.context, llama.llama_batch_get_one(array, len(part))) != 0:
                raise RuntimeError("llama_decode failed")
            llama.llama_synchronize(self.context)

    def seconds(self, tokens, batch):
        """Seconds for that many tokens behind the depth, batch at a time."""
        memory = self.llama.llama_get_memory(self.context)
        if self.filled:
            self.llama.llama_memory_seq_rm(memory, 0, self.depth, -1)
        else:
            self.decode(0, self.depth, self.batch)
            self.filled = True
        start = time.perf_counter()
        self.decode(self.depth, self.depth + tokens, batch)
        return time.perf_counter() - start

    def speeds(self, prompt, generate):
        result = {}
        if prompt:
            self.seconds(min(prompt, 16), prompt)
            result["prefill"] = prompt / self.seconds(prompt, prompt)
        if generate:
            self.seconds(min(generate, 16), 1)
            result["decode"] = generate / self.seconds(generate, 1)
        return result

    def close(self):
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)


def make_folder(quern, source, work, scheme):
    path = os.path.join(work, scheme)
    if not os.path.exists(os.path.join(path, "config.json")):
        weights, plus, head = scheme.partition("+")
        subprocess.run([quern, "quantize", source, path, "--weights", weights, "--quiet"] +
                       (["--head", head] if plus else []), check=True, stdout=subprocess.DEVNULL)
    return path


def quern_round(quern, folder, activations, args):
    command = [quern, "bench", "model", folder, "-p", str(args.prompt), "-n", str(args.generate), "-r", "1",
               "-b", str(args.prompt or 512), "-d", str(args.depth), "--kv", args.kv, "-t", str(args.threads),
               "-o", "json", "--quiet"]
    if args.isa:
        command += ["--isa", args.isa]
    if activations:
        command += ["--activations", activations]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    speeds = {("prefill" if row["n_prompt"] else "decode"): row["avg_ts"] for row in rows}
    return speeds, rows[-1]


def summary(rounds):
    result = {}
    for kind in ("prefill", "decode"):
        values = [r[kind] for r in rounds if kind in r]
        if values:
            result[kind + "_tps"] = round(statistics.median(values), 2)
            result[kind + "_range"] = [round(min(values), 2), round(max(values), 2)]
    return result


def compare(text, args, llama):
    scheme, _, activations = text.partition("@")
    folder = None
    if args.only != "llama" and file_type(scheme):
        folder = make_gguf(llama, args.gguf, args.work, file_type(scheme))
    elif args.only != "llama":
        folder = make_folder(args.quern, args.gguf, args.work, scheme)
    models, nearest = {}, {}
    if llama:
        for kind, near in peers_of(scheme):
            path = make_gguf(llama, args.gguf, args.work, kind)
            if path:
                models[kind] = Llama(llama, path, args.threads, args.prompt, args.generate, args.depth,
                                      args.kv_llama)
                nearest[kind] = near
    ours, theirs, facts = [], {kind: [] for kind in models}, {}
    for _ in range(args.rounds):
        if folder:
            speeds, facts = quern_round(args.quern, folder, activations, args)
            ours.append(speeds)
        for kind, model in models.items():
            theirs[kind].append(model.speeds(args.prompt, args.generate))
    record = {"scheme": scheme, "head": scheme.partition("+")[2] or "as the file has it",
              "activations": activations or "stored", "threads": args.threads, "n_prompt": args.prompt,
              "n_gen": args.generate, "n_depth": args.depth, "kv": args.kv, "kv_llama": args.kv_llama,
              "rounds": args.rounds}
    if ours:
        record["quern"] = {"model": facts["model_type"], "bytes": facts["model_size"], **summary(ours)}
        for key in ("bytes_per_token", "read_gbps", "decode_roofline_pct", "load_seconds", "peak_rss_bytes"):
            if key in facts:
                record["quern"][key] = facts[key]
    for kind, model in models.items():
        peer = {"type": kind, "nearest_bits": nearest[kind], "model": model.description, "bytes": model.bytes,
                **summary(theirs[kind])}
        for test in ("prefill", "decode"):
            if ours and test + "_tps" in peer:
                peer[test + "_ratio"] = round(record["quern"][test + "_tps"] / peer[test + "_tps"], 3)
        record.setdefault("llama_cpp", []).append(peer)
        model.close()
    near = [peer for peer in record.get("llama_cpp", []) if peer["nearest_bits"]]
    for test in ("prefill", "decode"):
        ranked = sorted((peer[test + "_ratio"], peer["type"]) for peer in near if test + "_ratio" in peer)
        if ranked:
            record[test + "_ratio"], record[test + "_peer"] = ranked[0]
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quern", default="build/quern", help="the command (default: build/quern)")
    parser.add_argument("--gguf", required=True, help="the model both sides start from")
    parser.add_argument("--work", required=True, help="folder for the files both sides make of it")
    parser.add_argument("--schemes",
                        default="f32,bf16,fp8-block,fp8,int8,nvfp4,mxfp4,nvfp4@int8,mxfp4@int8",
                        help="comma-separated; nvfp4+int8: with --head int8; nvfp4@int8: with --activations int8; "
                             "nvfp4+f16.gguf: llama.cpp's file on both sides")
    parser.add_argument("--threads", "-t", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", "-p", type=int, default=512)
    parser.add_argument("--generate", "-n", type=int, default=128)
    parser.add_argument("--depth", "-d", type=int, default=0, help="tokens of context in front of the tests")
    parser.add_argument("--kv", default="f32", help="keys and values of quern (default: f32)")
    parser.add_argument("--kv-llama", default="f16", choices=sorted(TYPES), help="those of llama.cpp (default: f16)")
    parser.add_argument("--rounds", "-r", type=int, default=3)
    parser.add_argument("--isa", help="force a level on quern's side")
    parser.add_argument("--only", choices=["quern", "llama"], help="measure one side only")
    args = parser.parse_args()
    schemes = args.schemes.split(",")
    unknown = [s for s in schemes if not is_known(s.partition("@")[0]) or s.partition("@")[2] not in ("", "int8")]
    if unknown:
        parser.error(f"no scheme {unknown[0]}; known: {', '.join(PAIRS)}, TYPE.gguf")
    if not os.path.exists(args.gguf):
        parser.error(f"{args.gguf}: no such file")
    os.makedirs(args.work, exist_ok=True)
    llama = None if args.only == "quern" else load_llama()
    if not llama and args.only != "quern":
        return 1
    machine = {"machine": platform.processor() or platform.machine(), "threads": args.threads}
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    machine["machine"] = names[0] if names else machine["machine"]
    if args.only != "llama":
        version = subprocess.run([args.quern, "--version"], check=True, capture_output=True, text=True).stdout
        machine["quern"] = version.split("\n")[0]
    if llama:
        machine["llama_cpp_python"] = llama.__version__
        machine["llama_cpp_system"] = llama.llama_print_system_info().decode().strip()
    print(json.dumps(machine), flush=True)
    for scheme in schemes:
        note(f"{scheme} ...")
        print(json.dumps(compare(scheme, args, llama)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
