/* What the verbs share: the parsed command line, exit codes, the one error
 * line, the library's context and threads, files, interrupts.
 *
 * Results go to stdout, everything else to stderr. A verb returns an exit code
 * and prints nothing about a failure itself: cli_fail and cli_check do. */
#ifndef QN_CLI_CLI_H
#define QN_CLI_CLI_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <quern/quern.h>

#include "options.h"

enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_INPUT = 3,
    EXIT_MEMORY = 4,
    EXIT_DEVICE = 5,
    EXIT_SIGNAL = 130
};

/* What a status came from; it decides the exit code of the ambiguous ones. */
typedef enum cli_phase {
    PHASE_INPUT, /* opening or using an input file */
    PHASE_USAGE, /* something typed on the command line */
    PHASE_RUN,   /* working */
    PHASE_OUTPUT /* writing an output */
} cli_phase;

typedef struct cli {
    const cli_verb *verb;
    cli_value value[OPT_LIMIT];
    const char **operands;
    int operand_count;
    const char **stops; /* --stop, in order */
    int stop_count;
    int failed;  /* the error line was printed */
    qn_ctx *ctx; /* cli_start */
    qn_pool *pool;
    qn_exec exec;
    qn_plan_options plan; /* from --backend, --isa */
    char cache_dir[4096], cubin_dir[4096]; /* of GPU kernels; empty: none */
} cli;

/* Print the error line "quern VERB: sentence" (once) and return the code. */
int cli_fail(cli *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* 0 for QN_OK; else print the error's sentence and return the exit code of the status in that phase. */
int cli_check(cli *c, qn_status status, const qn_error *error, cli_phase phase);

/* 0 unless --out leads to `input`, which is read (NULL: none) and must not be replaced, or to a file in that folder. */
int cli_keep_input(cli *c, const char *input);

/* "out of memory for WHAT" and EXIT_MEMORY. */
int cli_memory(cli *c, const char *what);

/* Create context, thread pool (when the verb has --threads) and plan options. */
int cli_start(cli *c);
void cli_end(cli *c);

/* A remark for people on stderr unless --quiet. */
void cli_note(const cli *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory aligned to 64 bytes; NULL: out of memory. At least one byte. Release with free. */
void *cli_alloc(size_t count, size_t size);

/* The whole of a file ("-": stdin) with a zero behind it; free(*text). */
int cli_read_file(cli *c, const char *path, char **text, size_t *bytes);

/* The text of --prompt or --file, or of stdin when neither is given and `required` is 0. */
int cli_read_text(cli *c, char **text, size_t *bytes, int required);

/* Token ids of text; free(*ids). */
int cli_tokenize(cli *c, const qn_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags, int32_t **ids,
                 size_t *count);

/* Render messages through the tokenizer's chat template; free(*text). */
int cli_render_chat(cli *c, const qn_tokenizer *tokenizer, const qn_chat_message *messages, size_t count, char **text,
                    size_t *bytes);

/* How a model is run. Zeros: keys and values as floats, activations as stored. */
typedef struct cli_form {
    const char *kv;
    qn_activations activations;
} cli_form;

/* As --kv and --activations say. */
cli_form cli_asked_form(const cli *c);

/* Open a model with --backend and --isa. Verbs that only need its tokenizer open it on the reference backend, which
 * packs no weights. */
int cli_open_model(cli *c, const char *path, cli_form form, qn_model **model);
int cli_open_model_for_text(cli *c, const char *path, qn_model **model);

/* A session over the model with this context length and batch (0: defaults). */
int cli_open_session(cli *c, qn_model *model, int64_t context, int64_t batch, qn_session **session);

/* Catch SIGINT and SIGTERM, ignore SIGPIPE and SIGXFSZ. */
void cli_signals(void);

/* 1 after SIGINT or SIGTERM. cli_interrupt_clear forgets it (chat). */
int cli_interrupted(void);
void cli_interrupt_clear(void);

/* 1 when nobody reads stdout any more: the verb may stop quietly. */
int cli_output_closed(void);

/* Flush stdout: 0; after another error than a closed pipe, the failure. */
int cli_flush(cli *c);

/* A progress bar on stderr when that is a terminal; fraction in [0, 1]; text after it. */
int cli_progress_on(const cli *c);
void cli_progress(const cli *c, double fraction, const char *text);
void cli_progress_end(const cli *c);

/* Seconds on a monotonic clock. */
double cli_now(void);

/* "123.4 MB" and the like, decimal. */
const char *cli_size_text(char buffer[32], double bytes);

/* "f32[2,3]" */
const char *cli_shape_text(char buffer[128], const qn_shape *shape);

/* Median and smallest of values (sorted in place); count > 0. */
double cli_median(double *values, int count);

/* ---- JSON on one line ---- */

typedef struct json {
    FILE *out;
    int depth;
    unsigned char filled[16]; /* a value was written at that depth */
} json;

json json_begin(FILE *out);
void json_open(json *j, const char *key, char bracket);      /* '{' or '['; key NULL in arrays */
void json_close(json *j, char bracket);                      /* '}' or ']'; the outermost ends the line */
void json_text(json *j, const char *key, const char *value); /* NULL: null */
void json_bytes(json *j, const char *key, const char *value, size_t bytes);
void json_int(json *j, const char *key, int64_t value);
void json_number(json *j, const char *key, double value, int digits); /* significant digits; non-finite: null */
void json_bool(json *j, const char *key, int value);

/* Length of the UTF-8 character at s[0..n): 1..4; 0: more bytes may complete it; -1: not UTF-8. */
int cli_utf8_length(const unsigned char *s, size_t n);

#endif
