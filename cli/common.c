/* What the verbs share: see cli.h. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Failures ---- */

int cli_fail(cli *c, int code, const char *format, ...)
{
    if (c->failed)
        return code;
    c->failed = 1;
    fflush(stdout);
    cli_progress_end(c);
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = ' ';
    const char *name = c->verb ? c->verb->name : "";
    fprintf(stderr, "quern%s%s: %s\n", *name ? " " : "", name, line);
    return code;
}

int cli_memory(cli *c, const char *what)
{
    return cli_fail(c, EXIT_MEMORY, "out of memory for %s", what);
}

static int code_of(qn_status status, cli_phase phase)
{
    switch (status) {
    case QN_OK: return EXIT_DONE;
    case QN_E_FILE: return EXIT_INPUT;
    case QN_E_MEMORY: return EXIT_MEMORY;
    case QN_E_DEVICE:
    case QN_E_JIT: return EXIT_DEVICE;
    case QN_E_CANCELLED: return EXIT_SIGNAL;
    case QN_E_EXISTS: return EXIT_FAILED;
    case QN_E_IO:
    case QN_E_UNSUPPORTED:
    case QN_E_SHAPE:
    case QN_E_FORMAT:
    case QN_E_ARGUMENT: return phase == PHASE_INPUT ? EXIT_INPUT : phase == PHASE_USAGE ? EXIT_USAGE : EXIT_FAILED;
    default: return EXIT_FAILED;
    }
}

int cli_check(cli *c, qn_status status, const qn_error *error, cli_phase phase)
{
    if (status == QN_OK)
        return 0;
    const int code = code_of(status, phase);
    if (error && error->status == status && error->text[0])
        return cli_fail(c, code, "%s", error->text);
    return cli_fail(c, code, "%s", qn_status_name(status));
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

int cli_keep_input(cli *c, const char *input)
{
    const char *path = c->value[OPT_OUT].s, *slash = strrchr(path, '/');
    char folder[4096] = ".";
    struct stat in, out, parent;
    if (!input || stat(input, &in) != 0 || stat(path, &out) != 0)
        return 0;
    if (slash && (size_t)(slash - path) < sizeof folder - 1)
        snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path);
    if (!same_file(&in, &out) && (stat(folder, &parent) != 0 || !same_file(&in, &parent)))
        return 0;
    return cli_fail(c, EXIT_FAILED, "the output %s is, or is a file of, the input %s; choose another name", path,
                    input);
}

void cli_note(const cli *c, const char *format, ...)
{
    if (c->value[OPT_QUIET].set)
        return;
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
}

/* ---- Context and threads ---- */

static void log_line(void *user, qn_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const cli *c = user;
    if (level > QN_LOG_WARN ? !c->value[OPT_VERBOSE].set : c->value[OPT_QUIET].set)
        return;
    fprintf(stderr, "%s: %s\n", (unsigned)level < 4 ? names[level] : "log", line);
}

/* The folder of compiled GPU kernels: --cache-dir, or quern below the user's cache folder. */
static void find_cache(cli *c)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (c->value[OPT_CACHE_DIR].set)
        n = snprintf(c->cache_dir, sizeof c->cache_dir, "%s", c->value[OPT_CACHE_DIR].s);
    else if (cache && cache[0] == '/')
        n = snprintf(c->cache_dir, sizeof c->cache_dir, "%s/quern", cache);
    else if (home && home[0] == '/')
        n = snprintf(c->cache_dir, sizeof c->cache_dir, "%s/.cache/quern", home);
    if (n < 0 || (size_t)n >= sizeof c->cache_dir)
        c->cache_dir[0] = 0;
}

/* Kernels made at build time: cubins/ beside the program, or ../lib/quern/cubins where it is installed. */
static void find_cubins(cli *c)
{
    static const char *const places[] = {"cubins", "../lib/quern/cubins"};
    char program[3072];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        snprintf(c->cubin_dir, sizeof c->cubin_dir, "%.*s%s", (int)(slash + 1 - program), program, places[i]);
        if (access(c->cubin_dir, R_OK | X_OK) == 0)
            return;
    }
    c->cubin_dir[0] = 0;
}

/* --isa of a verb that opens models or plans of its own: a cap of the whole context. */
static int cap_level(cli *c, qn_ctx_options *options)
{
    qn_error error = {0};
    if (!cli_verb_takes(c->verb, OPT_ISA) || cli_verb_takes(c->verb, OPT_BACKEND) || !c->value[OPT_ISA].set)
        return 0;
    return cli_check(c, qn_isa_parse(c->value[OPT_ISA].s, &options->isa_cap, &error), &error, PHASE_USAGE);
}

/* A level that this machine lacks is refused by whatever plan. */
static int check_level(cli *c, qn_isa level)
{
    qn_error error = {0};
    qn_op_desc desc;
    qn_plan *plan = NULL;
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.isa = level;
    qn_status status = qn_op_desc_parse("silu_mul m=1 k=16", &desc, &error);
    if (status == QN_OK)
        status = qn_plan_create(c->ctx, &desc, &options, &plan, &error);
    qn_plan_destroy(plan);
    return cli_check(c, status, &error, PHASE_USAGE);
}

int cli_start(cli *c)
{
    qn_error error = {0};
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.log = log_line;
    options.log_user = c;
    find_cache(c);
    find_cubins(c);
    options.cache_dir = c->cache_dir[0] ? c->cache_dir : NULL;
    options.cubin_dir = c->cubin_dir[0] ? c->cubin_dir : NULL;
    options.jit = (qn_jit_policy)c->value[OPT_JIT].i;
    options.device = (int32_t)c->value[OPT_DEVICE].i;
    if (cli_verb_takes(c->verb, OPT_TARGET) && c->operand_count) /* a model's kernels without a GPU */
        options.cuda_target = c->value[OPT_TARGET].s;
    const int absent = cli_verb_takes(c->verb, OPT_ABSENT) && c->value[OPT_ABSENT].set;
    if (absent)
        options.cuda_target = c->value[OPT_ABSENT].s;
    int code = cap_level(c, &options);
    if (!code)
        code = cli_check(c, qn_ctx_create(&options, &c->ctx, &error), &error, PHASE_RUN);
    if (!code && options.isa_cap != QN_ISA_MAX)
        code = check_level(c, options.isa_cap);
    qn_plan_options_init(&c->plan);
    if (!code && cli_verb_takes(c->verb, OPT_BACKEND))
        code = cli_check(c, qn_backend_parse(c->value[OPT_BACKEND].s, &c->plan.backend, &error), &error, PHASE_USAGE);
    if (absent && !c->value[OPT_BACKEND].set)
        c->plan.backend = QN_BACKEND_CUDA;
    if (!code && cli_verb_takes(c->verb, OPT_ISA) && c->value[OPT_ISA].set)
        code = cli_check(c, qn_isa_parse(c->value[OPT_ISA].s, &c->plan.isa, &error), &error, PHASE_USAGE);
    if (!code && cli_verb_takes(c->verb, OPT_THREADS)) {
        code =
            cli_check(c, qn_pool_create(c->ctx, (int32_t)c->value[OPT_THREADS].i, &c->pool, &error), &error, PHASE_RUN);
        c->exec.pool = c->pool;
    }
    return code;
}

void cli_end(cli *c)
{
    qn_pool_destroy(c->pool);
    qn_ctx_destroy(c->ctx);
    free(c->operands);
    free(c->stops);
}

/* ---- Memory, time, text forms ---- */

void *cli_alloc(size_t count, size_t size)
{
    if (size != 0 && count > (SIZE_MAX - 128) / size)
        return NULL;
    size_t bytes = (count * size + 64) / 64 * 64; /* at least one byte, a multiple of the alignment */
    const size_t large = (size_t)2 << 20;
    void *p;
    if (bytes < 4 * large) {
        p = aligned_alloc(64, bytes);
    } else { /* copies of operands: in large pages, as the library has a model's weights */
        bytes = (bytes + large - 1) / large * large;
        p = aligned_alloc(large, bytes);
        if (p)
            (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
    if (p)
        memset(p, 0, bytes);
    return p;
}

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *cli_size_text(char buffer[32], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    while (bytes >= 999.95 && unit < 4) {
        bytes /= 1000;
        unit++;
    }
    snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return buffer;
}

const char *cli_shape_text(char buffer[128], const qn_shape *shape)
{
    const qn_format_info *info = qn_format_get_info(shape->format);
    int n = snprintf(buffer, 128, "%s[", info ? info->name : "?");
    for (int32_t i = 0; i < shape->ndim && i < QN_MAX_DIMS; i++)
        n += snprintf(buffer + n, 128 - (size_t)n, "%s%lld", i ? "," : "", (long long)shape->dims[i]);
    snprintf(buffer + n, 128 - (size_t)n, "]");
    return buffer;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* ---- Interrupts, stdout ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    if (interrupted)
        _exit(EXIT_SIGNAL); /* asked twice: a long computation would not stop otherwise */
    interrupted = 1;
}

void cli_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; /* no SA_RESTART: a read waiting for input ends */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN; /* a closed pipe and a file beyond the limit of sizes are seen as write errors */
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

int cli_interrupted(void)
{
    return interrupted;
}

void cli_interrupt_clear(void)
{
    interrupted = 0;
}

static int output_error; /* errno of the first failed write to stdout */

static void flush_output(void)
{
    errno = 0;
    if (output_error || (fflush(stdout) == 0 && !ferror(stdout)))
        return;
    output_error = errno ? errno : EIO;
    if (output_error == EIO) { /* an earlier write failed: was it for want of a reader? */
        struct pollfd pipe_end = {.fd = STDOUT_FILENO, .events = POLLOUT};
        if (poll(&pipe_end, 1, 0) == 1 && (pipe_end.revents & POLLERR))
            output_error = EPIPE;
    }
}

int cli_output_closed(void)
{
    flush_output();
    return output_error == EPIPE;
}

int cli_flush(cli *c)
{
    flush_output();
    if (output_error && output_error != EPIPE)
        return cli_fail(c, EXIT_FAILED, "writing to stdout: %s", strerror(output_error));
    return 0;
}

/* ---- Progress ---- */

static int progress_shown;

int cli_progress_on(const cli *c)
{
    const char *terminal = getenv("TERM");
    return !c->value[OPT_QUIET].set && isatty(STDERR_FILENO) && (!terminal || strcmp(terminal, "dumb") != 0);
}

void cli_progress(const cli *c, double fraction, const char *text)
{
    enum { WIDTH = 28 };
    if (!cli_progress_on(c))
        return;
    fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    char bar[WIDTH + 1];
    int full = (int)(fraction * WIDTH);
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[K[%s] %3.0f %% %.60s", bar, 100 * fraction, text);
    fflush(stderr);
    progress_shown = 1;
}

void cli_progress_end(const cli *c)
{
    (void)c;
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = 0;
}

/* ---- Files and text ---- */

static int read_stream(cli *c, FILE *in, const char *shown, char **text, size_t *bytes)
{
    const size_t most = (size_t)1 << 30;
    size_t used = 0, room = 65536;
    char *buffer = malloc(room);
    while (buffer) {
        size_t n = fread(buffer + used, 1, room - used - 1, in);
        used += n;
        if (cli_interrupted()) {
            free(buffer);
            return EXIT_SIGNAL;
        }
        if (ferror(in)) {
            free(buffer);
            return cli_fail(c, EXIT_INPUT, "%s: %s", shown, strerror(errno));
        }
        if (feof(in)) {
            buffer[used] = 0;
            *text = buffer;
            *bytes = used;
            return 0;
        }
        if (used + 1 < room)
            continue;
        if (room >= most) {
            free(buffer);
            return cli_fail(c, EXIT_INPUT, "%s: longer than 1 GB", shown);
        }
        char *larger = realloc(buffer, room * 2);
        if (!larger)
            free(buffer);
        buffer = larger;
        room *= 2;
    }
    return cli_memory(c, shown);
}

int cli_read_file(cli *c, const char *path, char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    if (strcmp(path, "-") == 0)
        return read_stream(c, stdin, "stdin", text, bytes);
    FILE *in = fopen(path, "rb");
    if (!in)
        return cli_fail(c, EXIT_INPUT, "%s: %s", path, strerror(errno));
    int code = read_stream(c, in, path, text, bytes);
    fclose(in);
    return code;
}

int cli_read_text(cli *c, char **text, size_t *bytes, int required)
{
    const cli_value *prompt = &c->value[OPT_PROMPT], *file = &c->value[OPT_FILE];
    *text = NULL;
    *bytes = 0;
    if (prompt->set && file->set)
        return cli_fail(c, EXIT_USAGE, "--prompt and --file are both given");
    if (!prompt->set && !file->set && required)
        return cli_fail(c, EXIT_USAGE, "no text: give --prompt TEXT or --file FILE (- is stdin)");
    if (!prompt->set)
        return cli_read_file(c, file->set ? file->s : "-", text, bytes);
    size_t n = strlen(prompt->s);
    *text = malloc(n + 1);
    if (!*text)
        return cli_memory(c, "the text");
    memcpy(*text, prompt->s, n + 1);
    *bytes = n;
    return 0;
}

int cli_tokenize(cli *c, const qn_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags, int32_t **ids,
                 size_t *count)
{
    qn_error error = {0};
    *ids = NULL;
    *count = 0;
    if (!tokenizer)
        return cli_fail(c, EXIT_INPUT, "the model has no tokenizer (tokenizer.json or GGUF tokens)");
    size_t room = bytes + 8; /* a byte gives at most one token, and some special ones */
    int32_t *list = cli_alloc(room, sizeof *list);
    if (!list)
        return cli_memory(c, "the token ids");
    qn_status status = qn_tokenizer_encode(tokenizer, text, bytes, flags, list, room, count, &error);
    if (status == QN_E_WORKSPACE) {
        free(list);
        room = *count;
        list = cli_alloc(room, sizeof *list);
        if (!list)
            return cli_memory(c, "the token ids");
        status = qn_tokenizer_encode(tokenizer, text, bytes, flags, list, room, count, &error);
    }
    if (status != QN_OK) {
        free(list);
        return cli_check(c, status, &error, PHASE_RUN);
    }
    *ids = list;
    return 0;
}

int cli_render_chat(cli *c, const qn_tokenizer *tokenizer, const qn_chat_message *messages, size_t count, char **text,
                    size_t *bytes)
{
    qn_error error = {0};
    *text = NULL;
    *bytes = 0;
    size_t room = 4096;
    for (size_t i = 0; i < count; i++)
        room += strlen(messages[i].content) + 256;
    for (int attempt = 0; attempt < 2; attempt++) {
        char *buffer = malloc(room + 1);
        if (!buffer)
            return cli_memory(c, "the chat text");
        qn_status status = qn_chat_render(tokenizer, NULL, messages, count, 1, buffer, room, bytes, &error);
        if (status == QN_OK) {
            buffer[*bytes] = 0;
            *text = buffer;
            return 0;
        }
        free(buffer);
        if (status != QN_E_WORKSPACE || attempt == 1)
            return cli_check(c, status, &error, PHASE_INPUT);
        room = *bytes;
    }
    return EXIT_FAILED;
}

/* ---- Models ---- */

cli_form cli_asked_form(const cli *c)
{
    return (cli_form){c->value[OPT_KV].s, (qn_activations)c->value[OPT_ACTIVATIONS].i};
}

int cli_open_model(cli *c, const char *path, cli_form form, qn_model **model)
{
    qn_error error = {0};
    qn_model_activations taken;
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan = c->plan;
    options.exec = c->exec;
    options.no_packed_file = c->value[OPT_NO_PACKED].set;
    options.kv = form.kv;
    options.activations = form.activations;
    int code = cli_check(c, qn_model_open(c->ctx, path, &options, model, &error), &error, PHASE_INPUT);
    if (code || form.activations == QN_ACTIVATIONS_STORED)
        return code;
    qn_model_get_activations(*model, &taken);
    if (!taken.layers) {
        cli_progress_end(c);
        cli_note(c,
                 "note: %s: int8 activations change nothing: no layer has 4-bit float weights (nvfp4, mxfp4) and "
                 "activations that are not quantised already\n",
                 path);
    }
    return 0;
}

int cli_open_model_for_text(cli *c, const char *path, qn_model **model)
{
    qn_error error = {0};
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = QN_BACKEND_REF;
    return cli_check(c, qn_model_open(c->ctx, path, &options, model, &error), &error, PHASE_INPUT);
}

int cli_open_session(cli *c, qn_model *model, int64_t context, int64_t batch, qn_session **session)
{
    qn_error error = {0};
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = (int32_t)context;
    options.batch = (int32_t)batch;
    options.exec = c->exec;
    return cli_check(c, qn_session_create(model, &options, session, &error), &error, PHASE_USAGE);
}
