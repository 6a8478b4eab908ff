/* The option table and the verb table: every word of the command line, once. */
#include <stddef.h>

#include <quern/model.h>

#include "options.h"

#define ISA_WORDS "scalar|avx2|avx512|avx512vnni|avx512bf16|amx"

const cli_option cli_options[OPT_LIMIT] = {
    [OPT_HELP] = {"help", NULL, 'h', KIND_FLAG, 0, 0, NULL, NULL, "show this help"},
    [OPT_VERSION] = {"version", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "print the version"},
    [OPT_MAN] = {"man", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "print the manual page (roff)"},
    [OPT_COMPLETION] = {"completion", NULL, 0, KIND_CHOICE, 0, 0, NULL, "bash|zsh|fish",
                        "print the completion script of a shell"},
    [OPT_VERBOSE] = {"verbose", NULL, 'v', KIND_FLAG, 0, 0, NULL, NULL, "show the library's log on stderr"},
    [OPT_QUIET] = {"quiet", NULL, 'q', KIND_FLAG, 0, 0, NULL, NULL, "no remarks, progress or timings on stderr"},
    [OPT_MODEL] = {"model", NULL, 'm', KIND_TEXT, 0, 0, NULL, "MODEL",
                   "the model: a GGUF file or a folder with config.json and safetensors (same as the operand)"},
    [OPT_PROMPT] = {"prompt", NULL, 'p', KIND_TEXT, 0, 0, NULL, "TEXT", "the text"},
    [OPT_FILE] = {"file", NULL, 'f', KIND_TEXT, 0, 0, NULL, "FILE", "read the text from a file; - is stdin"},
    [OPT_PREDICT] = {"predict", "n-predict", 'n', KIND_INT, -1, 1000000, "128", "N",
                     "most tokens to generate; -1: until the end of the reply or of the context"},
    [OPT_TEMP] = {"temp", "temperature", 0, KIND_FLOAT, 0, 100, "0.8", "T", "sampling temperature; 0 is greedy"},
    [OPT_TOP_K] = {"top-k", NULL, 0, KIND_INT, 0, 1000000, "40", "K", "draw from the K most likely tokens; 0: off"},
    [OPT_TOP_P] = {"top-p", NULL, 0, KIND_FLOAT, 0, 1, "0.95", "P",
                   "draw from the fewest tokens with this total probability; 1: off"},
    [OPT_MIN_P] = {"min-p", NULL, 0, KIND_FLOAT, 0, 1, "0.05", "P",
                   "drop tokens below this share of the most likely one; 0: off"},
    [OPT_REPEAT_PENALTY] = {"repeat-penalty", NULL, 0, KIND_FLOAT, 0.01, 100, "1", "R",
                            "make tokens of the recent text less likely; 1: off"},
    [OPT_REPEAT_LAST] = {"repeat-last-n", NULL, 0, KIND_INT, 0, 1000000, "64", "N",
                         "how many tokens the repeat penalty looks back"},
    [OPT_SEED] = {"seed", NULL, 's', KIND_INT, 0, 9007199254740992.0, NULL, "N",
                  "seed of the sampling; without it one is drawn and shown"},
    [OPT_STOP] = {"stop", NULL, 0, KIND_LIST, 0, 0, NULL, "TEXT", "stop before this text; may be given more than once"},
    [OPT_RAW] = {"raw", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "give the text as it is, without the chat template"},
    [OPT_SYSTEM] = {"system", "system-prompt", 0, KIND_TEXT, 0, 0, NULL, "TEXT", "system message of the chat template"},
    [OPT_GREEDY] = {"greedy", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "always take the most likely token (--temp 0)"},
    [OPT_BACKEND] = {"backend", NULL, 0, KIND_CHOICE, 0, 0, "auto", "auto|ref|cpu|cuda", "where to compute"},
    [OPT_ISA] = {"isa", NULL, 0, KIND_CHOICE, 0, 0, NULL, ISA_WORDS,
                 "force this instruction-set level; without it the best of the machine"},
    [OPT_THREADS] = {"threads", NULL, 't', KIND_INT, 0, 1024, "0", "N", "threads; 0: all the process may use"},
    [OPT_NO_PACKED] = {"no-packed", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                       "pack the weights in memory even when the model has a packed file"},
    [OPT_KV] = {"kv", "kv-cache", 0, KIND_CHOICE, 0, 0, QN_KV_DEFAULT, "f32|bf16|fp8|cq4|cq2|cq1",
                "how keys and values of earlier tokens are kept; cq4, cq2 and cq1 need codebooks (see quern quantize)"},
    [OPT_ACTIVATIONS] =
        {"activations", NULL, 0, KIND_CHOICE, 0, 0, "stored", "stored|int8",
         "how linear layers of 4-bit floats (nvfp4, mxfp4) take activations that the model leaves in 16 "
         "bits: so, or in INT8 with a scale a token: faster for prompts, less exact"},
    [OPT_KV_BOOKS] = {"kv", "kv-cache", 0, KIND_CHOICE, 0, 0, NULL, "cq4|cq2|cq1",
                      "make codebooks of this scheme of keys and values"},
    [OPT_JIT] = {"jit", NULL, 0, KIND_CHOICE, 0, 0, "allow", "allow|cache|off",
                 "where GPU kernels may come from: compiled when they are neither shipped nor cached; shipped or "
                 "cached only; shipped only"},
    [OPT_CACHE_DIR] = {"cache-dir", NULL, 0, KIND_TEXT, 0, 0, NULL, "DIR",
                       "folder of compiled GPU kernels, \"\" for none (default: quern in $XDG_CACHE_HOME or ~/.cache)"},
    [OPT_DEVICE] = {"device", NULL, 0, KIND_INT, 0, 1024, "0", "N", "the GPU to use, as the driver counts them"},
    [OPT_TARGET] = {"target", NULL, 0, KIND_TEXT, 0, 0, NULL, "LIST",
                    "architectures to compile for, commas between them: sm_80, sm_86, sm_89, sm_90a, sm_100a, "
                    "sm_120a, or all; with a MODEL one of them; without it that of the GPU here"},
    [OPT_ABSENT] = {"target", NULL, 0, KIND_CHOICE, 0, 0, NULL, "sm_80|sm_86|sm_89|sm_90a|sm_100a|sm_120a",
                    "a typical GPU of this architecture instead of the one here; none need be here (--backend cuda)"},
    [OPT_CTX_SIZE] = {"ctx-size", "ctx|max-model-len", 'c', KIND_INT, 0, 16777216, "0", "N",
                      "context length in tokens; 0: the model's, at most 4096"},
    [OPT_BATCH] = {"batch", "batch-size", 'b', KIND_INT, 1, 65536, "512", "N",
                   "prompt tokens evaluated at once; 1: token by token"},
    [OPT_JSON_TIMINGS] = {"json-timings", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                          "print the timings on stderr as one JSON object"},
    [OPT_TENSORS] = {"tensors", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "list every tensor"},
    [OPT_JSON] = {"json", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "print the result as JSON"},
    [OPT_LINES] = {"lines", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                   "take each line of the text by itself, without its line end"},
    [OPT_SPECIAL] = {"special", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                     "tokenize: add the special tokens the model adds and read their text as those tokens; detokenize: "
                     "show them"},
    [OPT_IDS] = {"ids", NULL, 0, KIND_TEXT, 0, 0, NULL, "IDS", "token ids, with commas or spaces between them"},
    [OPT_OUT] = {"out", NULL, 'o', KIND_TEXT, 0, 0, NULL, "FILE", "the file to write"},
    [OPT_ALL] = {"all", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "logits of every token, not of the last one only"},
    [OPT_REFERENCE] = {"reference", NULL, 'r', KIND_TEXT, 0, 0, NULL, "MODEL",
                       "also compare the predictions with this model's"},
    [OPT_CHUNK] = {"ctx", "ctx-size|chunk", 'c', KIND_INT, 8, 1048576, "512", "N", "tokens in a chunk of the text"},
    [OPT_STRIDE] = {"stride", NULL, 0, KIND_INT, 0, 1048576, "0", "N",
                    "tokens from the start of one chunk to that of the next; 0: a whole chunk"},
    [OPT_MAX_TOKENS] = {"max-tokens", NULL, 0, KIND_INT, 0, 1000000000, "0", "N",
                        "use only the first N tokens of the text; 0: all"},
    [OPT_SAMPLE] = {"sample", "predict|n-predict", 'n', KIND_INT, 1, 100000, "32", "N",
                    "tokens of greedy text per model; decode speed is measured on them"},
    [OPT_JSONL] = {"jsonl", NULL, 0, KIND_TEXT, 0, 0, NULL, "FILE", "also write one JSON object a model to this file"},
    [OPT_WEIGHTS] = {"weights", "scheme", 'w', KIND_TEXT, 0, 0, NULL, "SCHEME",
                     "how to store the weights; --list shows the schemes"},
    [OPT_FORCE] = {"force", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "replace an output that exists"},
    [OPT_KEEP_LAYERS] = {"keep-layers", NULL, 0, KIND_TEXT, 0, 0, NULL, "FIRST,LAST",
                         "leave the linear weights of that many first and last layers in BF16 (default: 2,2 for the "
                         "FP8 schemes and models of 12 layers or more, else 0,0)"},
    [OPT_KEEP_QKV] = {"keep-qkv", NULL, 0, KIND_CHOICE, 0, 0, "auto", "auto|yes|no",
                      "leave the q, k and v projections in BF16; auto: for the FP8 schemes and models of hidden size "
                      "below 1024"},
    [OPT_HEAD] = {"head", "output-layer", 0, KIND_CHOICE, 0, 0, "bf16", "bf16|fp8|int8|int8-azp",
                  "how to store the output layer, beside weights in a scheme of compressed-tensors; embeddings that it "
                  "shares stay BF16 and it gets a weight of its own"},
    [OPT_CALIBRATE] = {"calibrate", "calibration", 0, KIND_TEXT, 0, 0, NULL, "FILE",
                       "the text whose first 4096 tokens show what inputs the layers get (default: a built-in one)"},
    [OPT_PACK] = {"pack", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                  "also write the packed file, so that no start has to pack (see quern pack)"},
    [OPT_RESUME] = {"resume", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                    "keep finished tensors in OUT.unfinished until the folder is whole, and go on with those that an "
                    "interrupted run kept there"},
    [OPT_LIST] = {"list", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL, "list the schemes"},
    [OPT_IN] = {"in", NULL, 'i', KIND_TEXT, 0, 0, NULL, "FILE", "the safetensors file with the input tensors"},
    [OPT_REPEAT] = {"repeat", NULL, 0, KIND_INT, 0, 1000000, "0", "N",
                    "run N times more and print the median time as one JSON line"},
    [OPT_FILTER] = {"filter", NULL, 0, KIND_TEXT, 0, 0, NULL, "REGEX",
                    "only cases whose string matches this POSIX extended regular expression, or is exactly this text"},
    [OPT_SVG] = {"svg", "chart", 0, KIND_TEXT, 0, 0, NULL, "FILE",
                 "also draw the cases against their rooflines into this SVG file"},
    [OPT_DUMP_KERNEL] = {"dump-kernel", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                         "print the device sources that the case compiles, parameters first"},
    [OPT_MEASURE] = {"measure", NULL, 0, KIND_FLAG, 0, 0, NULL, NULL,
                     "also time each operator's kernels and name those far below their roofline"},
    [OPT_MEMORY] = {"memory", NULL, 0, KIND_INT, 0, 65536, "0", "MIB",
                    "memory that the read and copy ceilings go through, and as much for copies of operands; 0: twice "
                    "the last-level caches, 256 to 1024"},
    [OPT_PROMPT_TOKENS] = {"n-prompt", "prompt", 'p', KIND_INT, 0, 1000000, "512", "N",
                           "tokens of the prompt test; 0: none"},
    [OPT_GEN_TOKENS] = {"n-gen", "predict", 'n', KIND_INT, 0, 1000000, "128", "N",
                        "tokens of the generation test; 0: none"},
    [OPT_DEPTH] = {"n-depth", "depth", 'd', KIND_INT, 0, 1000000, "0", "N",
                   "tokens of context in front of every test, which are not timed"},
    [OPT_REPETITIONS] = {"repetitions", NULL, 'r', KIND_INT, 1, 1000, "3", "N", "times each test runs"},
    [OPT_OUTPUT_FORMAT] = {"output", NULL, 'o', KIND_CHOICE, 0, 0, "md", "md|json", "form of the table"},
};

#define COMMON OPT_VERBOSE, OPT_QUIET, OPT_HELP
#define GPU OPT_JIT, OPT_CACHE_DIR, OPT_DEVICE
#define COMPUTE OPT_BACKEND, OPT_ISA, OPT_THREADS, GPU
#define OPTIONS(...)                                                                                                   \
    (const uint8_t[])                                                                                                  \
    {                                                                                                                  \
        __VA_ARGS__, OPT_END                                                                                           \
    }

const cli_verb cli_verbs[] = {
    {"", "VERB ...", 0, 0, 0, OPTIONS(OPT_HELP, OPT_VERSION, OPT_MAN, OPT_COMPLETION),
     "run and quantise language models on this machine",
     "quern runs language models from GGUF files and from folders of safetensors, quantises them, and measures what "
     "quantisation costs.\n"
     "Results go to stdout, everything else to stderr. A failing call prints one line on stderr and leaves no output "
     "file.",
     "quern run MODEL -p \"Why is the sky blue?\" -n 64\nquern quantize MODEL OUT --weights fp8-block\nquern "
     "perplexity "
     "OUT -f text.txt --reference MODEL",
     NULL},

    {"run", "MODEL [TEXT | -]", 1, 2, 1,
     OPTIONS(OPT_MODEL, OPT_PROMPT, OPT_FILE, OPT_PREDICT, OPT_TEMP, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P,
             OPT_REPEAT_PENALTY, OPT_REPEAT_LAST, OPT_SEED, OPT_GREEDY, OPT_STOP, OPT_RAW, OPT_SYSTEM, OPT_CTX_SIZE,
             OPT_BATCH, COMPUTE, OPT_KV, OPT_ACTIVATIONS, OPT_NO_PACKED, OPT_JSON_TIMINGS, COMMON),
     "generate text",
     "Streams the text that follows the prompt to stdout and ends at an end token, a stop text, --predict tokens or "
     "the end of the context. Models with a chat template get the prompt as a user message unless --raw is given.\n"
     "Greedy text (--greedy) does not depend on threads, batch size or anything else but the model and the prompt.",
     "quern run model.gguf -p \"Once upon a time\" --raw -n 64 --greedy\nquern run folder/ -f question.txt --temp 0.5 "
     "--seed 7",
     verb_run},

    {"chat", "MODEL", 1, 1, 1,
     OPTIONS(OPT_MODEL, OPT_SYSTEM, OPT_PREDICT, OPT_TEMP, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P, OPT_REPEAT_PENALTY,
             OPT_REPEAT_LAST, OPT_SEED, OPT_GREEDY, OPT_STOP, OPT_CTX_SIZE, OPT_BATCH, COMPUTE, OPT_KV, OPT_ACTIVATIONS,
             OPT_NO_PACKED, COMMON),
     "talk with a model in the terminal",
     "Reads a message a line from stdin and streams the reply. /reset forgets the conversation, /system TEXT sets the "
     "system message and starts again, /exit or the end of input ends it. Control-C stops a reply; at the prompt it "
     "ends the program. When the context is full the oldest turns are dropped.",
     "quern chat model.gguf --system \"Answer briefly.\"", verb_chat},

    {"inspect", "MODEL", 1, 1, 1, OPTIONS(OPT_MODEL, OPT_TENSORS, OPT_JSON, COMMON), "show what is in a model",
     "Architecture, sizes, bits per weight, formats of the tensors and facts of the tokenizer.",
     "quern inspect model.gguf --tensors", verb_inspect},

    {"verify", "MODEL", 1, 1, 1, OPTIONS(OPT_MODEL, OPT_THREADS, OPT_JSON, COMMON), "check a model's data",
     "Reads all data: values that are not finite, scales that make no sense, checksums where the files carry them. "
     "Exit code 3 when an error is found.",
     "quern verify folder/", verb_verify},

    {"quantize", "MODEL [OUT]", 1, 2, 1,
     OPTIONS(OPT_MODEL, OPT_WEIGHTS, OPT_KV_BOOKS, OPT_LIST, OPT_FORCE, OPT_KEEP_LAYERS, OPT_KEEP_QKV, OPT_HEAD,
             OPT_CALIBRATE, OPT_PACK, OPT_RESUME, OPT_ISA, OPT_THREADS, OPT_JSON, COMMON),
     "write a model in another number format",
     "Writes folder OUT with safetensors, config.json and tokenizer files in the layouts other tools read. The folder "
     "appears under its name only when it is complete. With --resume a run that is interrupted can be started again "
     "and "
     "goes on from there; the result is the same, byte for byte.\n"
     "With --kv also codebooks for `--kv` of the verbs that run a model. Without OUT and --weights only these are "
     "made, from what the model does on a text, and put where the model looks for them: MODEL.kv-SCHEME.safetensors "
     "beside a "
     "file, kv-SCHEME.safetensors in a folder.",
     "quern quantize model.gguf out/ --weights fp8-block\nquern quantize model.gguf out/ --weights aqlm-2x8 --resume\n"
     "quern quantize model.gguf --kv cq2\nquern quantize --list",
     verb_quantize},

    {"pack", "MODEL", 1, 1, 1, OPTIONS(OPT_MODEL, OPT_OUT, OPT_FORCE, COMPUTE, OPT_JSON, COMMON),
     "write a model's packed file",
     "Kernels read weights in a layout of their own. The packed file holds them so: with it, opening a model maps the "
     "weights and packs nothing. It is used when it lies at its place, MODEL.packed beside a file or quern.packed in "
     "a folder, and fits: one that is stale or damaged is never used, and a line on stderr says why. --out writes it "
     "elsewhere.",
     "quern pack model.gguf\nquern pack folder/ --force", verb_pack},

    {"perplexity", "MODEL", 1, 1, 1,
     OPTIONS(OPT_MODEL, OPT_FILE, OPT_PROMPT, OPT_REFERENCE, OPT_CHUNK, OPT_STRIDE, OPT_MAX_TOKENS, OPT_BATCH, COMPUTE,
             OPT_KV, OPT_ACTIVATIONS, OPT_NO_PACKED, OPT_JSON, COMMON),
     "how well a model predicts a text",
     "The text is cut into chunks of --ctx tokens, each starting with the BOS token in place of its first token when "
     "the model adds one. The first half of a chunk is context; the predictions of the tokens in its second half are "
     "scored. An incomplete last chunk is left out, except when it is the only one. Perplexity is exp(mean negative "
     "log-likelihood); "
     "its error is one standard error of that mean.\n"
     "With --reference, which always keeps keys and values as floats and takes activations as they are stored: KL "
     "divergence KL(reference || model) per "
     "scored token (mean, median, 99 %, largest) and how "
     "often both find the same token most likely.",
     "quern perplexity out/ -f text.txt --reference model.gguf --max-tokens 8192", verb_perplexity},

    {"compare", "REFERENCE [MODEL ...]", 1, -1, 1,
     OPTIONS(OPT_MODEL, OPT_FILE, OPT_PROMPT, OPT_CHUNK, OPT_MAX_TOKENS, OPT_SAMPLE, OPT_RAW, OPT_BATCH, COMPUTE,
             OPT_KV, OPT_ACTIVATIONS, OPT_NO_PACKED, OPT_JSONL, OPT_JSON, COMMON),
     "a table of models against a reference",
     "Scores the text as `quern perplexity` does, all models in step, and prints per model: bits per weight, file "
     "size, perplexity, its ratio to the reference's, KL divergence, top-1 agreement, prefill and decode speed, and a "
     "line of greedy text after the prompt of -p. --kv and --activations are of all models but the reference; "
     "MODEL+cq2 "
     "is a model that keeps keys and values so, MODEL+int8 one with such activations. Prefill speed is that of the "
     "context half of each chunk, for which no logits are made; "
     "decode speed is that of the greedy text after its first token.",
     "quern compare bf16/ bf16/+fp8 int8/ -f text.txt --max-tokens 4096 -p \"The capital of France is\"", verb_compare},

    {"tokenize", "MODEL", 1, 1, 1, OPTIONS(OPT_MODEL, OPT_PROMPT, OPT_FILE, OPT_LINES, OPT_SPECIAL, COMMON),
     "token ids of a text",
     "Prints the ids on one line, with --lines one line of ids for each line of the text. Reads stdin without -p or "
     "-f.",
     "quern tokenize model.gguf -p \"Hello world\"", verb_tokenize},

    {"detokenize", "MODEL [ID ...]", 1, -1, 1, OPTIONS(OPT_MODEL, OPT_IDS, OPT_FILE, OPT_LINES, OPT_SPECIAL, COMMON),
     "text of token ids",
     "Prints the text of the ids as it is, without a line end. With --lines each line of ids gives one line of text. "
     "Reads stdin when no ids are given.",
     "quern detokenize model.gguf 19556 905", verb_detokenize},

    {"logits", "MODEL", 1, 1, 1,
     OPTIONS(OPT_MODEL, OPT_PROMPT, OPT_FILE, OPT_IDS, OPT_OUT, OPT_ALL, OPT_BATCH, COMPUTE, OPT_KV, OPT_ACTIVATIONS,
             OPT_NO_PACKED, COMMON),
     "write a model's logits to a file",
     "Writes the tensors `logits` F32[T,vocabulary] (T is 1 without --all) and `ids` I32[tokens]. Text is tokenised as "
     "it is, with the special tokens the model adds.",
     "quern logits model.gguf --ids 1,2,3 --all --out logits.safetensors", verb_logits},

    {"op", "NAME [KEY=VALUE ...]", 1, -1, 0, OPTIONS(OPT_IN, OPT_OUT, COMPUTE, OPT_REPEAT, COMMON),
     "run one operator on tensors from a file",
     "Reads the operator's inputs by name from a safetensors file, and writes its outputs to another. KEY=VALUE sets "
     "attributes. `ref` is the scalar reference that defines the result. The operators, their tensors and attributes "
     "are in docs/operators.md.",
     "quern op scaled_mm --in in.safetensors --out out.safetensors out=f32 --backend ref", verb_op},

    {"kernels", "", 0, 0, 0, OPTIONS(OPT_FILTER, OPT_JSON, COMMON), "list the kernels",
     "One line a kernel of the registry: its name, operator, backend, level, how far it is tested, and why this "
     "machine cannot run it.",
     "quern kernels", verb_kernels},

    {"explain", "OP KEY=VALUE ...", 1, -1, 0, OPTIONS(OPT_BACKEND, OPT_ISA, OPT_ABSENT, OPT_DUMP_KERNEL, GPU, COMMON),
     "say which kernel would run and why",
     "Takes an operator with sizes and attributes, or a case string as `quern bench kernels` prints it. For operators "
     "on "
     "vector-quantised weights it prints the generator's decision and what each level is predicted to cost "
     "(docs/vq.md).",
     "quern explain dense_mm m=1 n=576 k=576\nquern explain block_scaled_mm m=64 n=4096 k=7168 --target sm_90a",
     verb_explain},

    {"doctor", "", 0, 0, 0, OPTIONS(OPT_MEASURE, OPT_MEMORY, OPT_ISA, OPT_THREADS, GPU, OPT_JSON, COMMON),
     "what this machine can run, and why not more",
     "The processor and its levels, then for each operator the level that was chosen and what the machine lacks for "
     "the next one. --measure also checks and times a case of each operator for one row and for many (about half a "
     "minute) and names those below 10 % of their roofline.",
     "quern doctor --measure", verb_doctor},

    {"warm", "[MODEL]", 0, 1, 0, OPTIONS(OPT_TARGET, OPT_THREADS, GPU, COMMON), "compile the GPU kernels ahead of time",
     "Makes every GPU kernel that a case of the case table needs and keeps it in the cache folder, so that later runs "
     "find it there. With --target no GPU is needed: the folder can be carried to a machine that has one. What is "
     "cached already is not compiled again. One line a kernel, its time and where it came from. With a MODEL, the "
     "kernels of that model instead: those of its shapes, and the fused ones that decoding goes through, as the GPU "
     "here takes them or, with --target, a typical one of that architecture. A folder made so beside the program, "
     "as `cubins`, is what --jit off runs the model from.",
     "quern warm\nquern warm model.gguf --cache-dir cubins\nquern warm model.gguf --target sm_90a --cache-dir cubins\n"
     "quern warm --target sm_90a,sm_80 --cache-dir cubins",
     verb_warm},

    {"bench", "kernels | model ...", 0, -1, 0, OPTIONS(OPT_HELP), "measure kernels or a model",
     "See `quern bench kernels --help` and `quern bench model --help`.", "quern bench model model.gguf", verb_bench},

    {"bench kernels", "", 0, 0, 0, OPTIONS(OPT_FILTER, OPT_SVG, OPT_MEMORY, COMPUTE, OPT_JSON, COMMON),
     "measure kernels",
     "Checks each case of the case table against the reference, then times it with operands that the caches cannot "
     "hold, and prints time, GB/s and GFLOP/s beside the ceiling that binds: the machine's memory or the arithmetic "
     "that the kernel uses, measured in the same run. Cases of more than 2^24 multiply-adds are checked on fewer "
     "columns and rows (the field `verified` says on what). Without --filter a selection of two to three minutes "
     "runs; --filter reaches all shapes (`--filter .` runs every one). --json prints one object a case, --svg draws "
     "them. docs/bench.md has the method.",
     "quern bench kernels --filter block_scaled_mm --threads 1\nquern bench kernels --filter 'n=4096 k=14336' --svg "
     "roofline.svg",
     verb_bench_kernels},

    {"bench model", "MODEL", 1, 1, 1,
     OPTIONS(OPT_MODEL, OPT_PROMPT_TOKENS, OPT_GEN_TOKENS, OPT_DEPTH, OPT_REPETITIONS, OPT_BATCH, OPT_MEMORY, COMPUTE,
             OPT_KV, OPT_ACTIVATIONS, OPT_NO_PACKED, OPT_OUTPUT_FORMAT, OPT_JSON, COMMON),
     "measure a model's speed",
     "Prompt processing (pp) and text generation (tg) in tokens a second, as mean and standard deviation of the "
     "repetitions after one warm-up, in the shape of llama-bench's table; with -d behind that many tokens. Behind it: "
     "the bytes that a token reads (weights, and with -d the context's keys and values), the share that generation "
     "reaches of what the memory's read bandwidth (measured right after the tests) allows, the time of loading and "
     "packing, and the peak memory.",
     "quern bench model model.gguf -p 512 -n 128 -r 5\nquern bench model model.gguf -p 0 -d 4096 --kv fp8",
     verb_bench_model},

    {"version", "", 0, 0, 0, OPTIONS(OPT_HELP), "print the version", "", "quern version", verb_version},
    {"help", "[VERB]", 0, 2, 0, OPTIONS(OPT_HELP), "show help", "", "quern help run", verb_help},
    {NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL},
};
