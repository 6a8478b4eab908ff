/* The option table: verbs, operands and options as data.
 *
 * Everything a user can type comes from the two arrays in table.c: parsing and
 * its error sentences (options.c), help, the man page and shell completion
 * (manual.c). A new option is one row there and one id here. */
#ifndef QN_CLI_OPTIONS_H
#define QN_CLI_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

typedef enum cli_option_id {
    OPT_END = 0, /* ends a verb's list */
    OPT_HELP,
    OPT_VERSION,
    OPT_MAN,
    OPT_COMPLETION,
    OPT_VERBOSE,
    OPT_QUIET,
    OPT_MODEL,
    OPT_PROMPT,
    OPT_FILE,
    OPT_PREDICT,
    OPT_TEMP,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_REPEAT_PENALTY,
    OPT_REPEAT_LAST,
    OPT_SEED,
    OPT_STOP,
    OPT_RAW,
    OPT_SYSTEM,
    OPT_GREEDY,
    OPT_BACKEND,
    OPT_ISA,
    OPT_THREADS,
    OPT_NO_PACKED,
    OPT_KV,
    OPT_ACTIVATIONS,
    OPT_KV_BOOKS,
    OPT_JIT,
    OPT_CACHE_DIR,
    OPT_DEVICE,
    OPT_TARGET,
    OPT_ABSENT,
    OPT_CTX_SIZE,
    OPT_BATCH,
    OPT_JSON_TIMINGS,
    OPT_TENSORS,
    OPT_JSON,
    OPT_LINES,
    OPT_SPECIAL,
    OPT_IDS,
    OPT_OUT,
    OPT_ALL,
    OPT_REFERENCE,
    OPT_CHUNK,
    OPT_STRIDE,
    OPT_MAX_TOKENS,
    OPT_SAMPLE,
    OPT_JSONL,
    OPT_WEIGHTS,
    OPT_FORCE,
    OPT_KEEP_LAYERS,
    OPT_KEEP_QKV,
    OPT_HEAD,
    OPT_CALIBRATE,
    OPT_PACK,
    OPT_RESUME,
    OPT_LIST,
    OPT_IN,
    OPT_REPEAT,
    OPT_FILTER,
    OPT_SVG,
    OPT_DUMP_KERNEL,
    OPT_MEASURE,
    OPT_MEMORY,
    OPT_PROMPT_TOKENS,
    OPT_GEN_TOKENS,
    OPT_DEPTH,
    OPT_REPETITIONS,
    OPT_OUTPUT_FORMAT,
    OPT_LIMIT
} cli_option_id;

typedef enum cli_kind {
    KIND_FLAG,   /* no value */
    KIND_INT,    /* whole number in [min, max] */
    KIND_FLOAT,  /* number in [min, max] */
    KIND_TEXT,   /* any text */
    KIND_CHOICE, /* one of the words in `value`, '|' between them */
    KIND_LIST    /* text, may be given more than once */
} cli_kind;

typedef struct cli_option {
    const char *name;    /* without the dashes */
    const char *aliases; /* other long names, '|' between them; NULL: none */
    char letter;         /* 0: none */
    cli_kind kind;
    double min, max;     /* KIND_INT, KIND_FLOAT */
    const char *initial; /* the default as text; NULL: none */
    const char *value;   /* name of the value in help, or the words of a choice */
    const char *help;
} cli_option;

struct cli;

typedef struct cli_verb {
    const char *name;               /* may be two words: "bench kernels"; "" for the command itself */
    const char *operands;           /* as help shows them */
    int min_operands, max_operands; /* -1: any number */
    int model_first;                /* the first operand is a model: --model gives it too */
    const uint8_t *options;
    const char *summary; /* one line */
    const char *text;    /* paragraphs, '\n' between them */
    const char *example; /* lines */
    int (*run)(struct cli *cli);
} cli_verb;

extern const cli_option cli_options[OPT_LIMIT];
extern const cli_verb cli_verbs[]; /* the first is the command itself; ends with a NULL name */

typedef struct cli_value {
    int set;       /* given on the command line */
    int64_t i;     /* KIND_INT, KIND_FLAG, position of a KIND_CHOICE */
    double f;      /* KIND_FLOAT */
    const char *s; /* the text as given or the default; NULL: none */
} cli_value;

/* The verb with that name (one or two words); NULL: none. */
const cli_verb *cli_verb_find(const char *name);

/* 1 when the verb takes the option. */
int cli_verb_takes(const cli_verb *verb, cli_option_id id);

/* The closest of the words a mistyped one may mean; NULL when none is close.
 * next(i) gives word i, NULL past the end. */
const char *cli_closest(const char *word, const char *(*next)(const void *user, int i), const void *user);

/* Parse argv[0..argc) after the verb into cli->value, operands and stops.
 * 0, or the exit code after its sentence was printed. */
int cli_parse(struct cli *cli, int argc, char **argv);

/* Help, man page, completion: all from the table. */
void cli_print_help(FILE *out);
void cli_print_verb_help(FILE *out, const cli_verb *verb);
void cli_print_man(FILE *out);
void cli_print_completion(FILE *out, const char *shell);

/* Each verb's work: an exit code. */
int verb_inspect(struct cli *cli);
int verb_verify(struct cli *cli);
int verb_run(struct cli *cli);
int verb_chat(struct cli *cli);
int verb_tokenize(struct cli *cli);
int verb_detokenize(struct cli *cli);
int verb_logits(struct cli *cli);
int verb_perplexity(struct cli *cli);
int verb_compare(struct cli *cli);
int verb_quantize(struct cli *cli);
int verb_pack(struct cli *cli);
int verb_op(struct cli *cli);
int verb_kernels(struct cli *cli);
int verb_explain(struct cli *cli);
int verb_doctor(struct cli *cli);
int verb_warm(struct cli *cli);
int verb_bench(struct cli *cli);
int verb_bench_kernels(struct cli *cli);
int verb_bench_model(struct cli *cli);
int verb_version(struct cli *cli);
int verb_help(struct cli *cli);

#endif
