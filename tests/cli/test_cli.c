/* The command as its users meet it: exit codes, the one error line, help,
 * manual and completion against the option table, `quern op` on small files,
 * and no output file after a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "cli/process.h"

static char folder[64];

/* Command line (@ stands for the test's folder), exit code, words the error line must hold. */
typedef struct situation {
    const char *line;
    int code;
    const char *words;
} situation;

static const situation situations[] = {
    {"", 2, "no verb"},
    {"rnu", 2, "did you mean 'run'"},
    {"quantise a b", 2, "did you mean 'quantize'"},
    {"xyzzyxyzzy", 2, "unknown verb"},
    {"--hlep", 2, "did you mean --help"},
    {"--completion", 2, "needs a value"},
    {"--completion tcsh", 2, "none of bash|zsh|fish"},
    {"--version=1", 2, "takes no value"},
    {"help nothing", 2, "no verb"},
    {"help a b c", 2, "unexpected argument"},
    {"version 1", 2, "unexpected argument"},
    {"run", 2, "too few arguments"},
    {"run m.gguf", 2, "no text"},
    {"run m.gguf a b", 2, "unexpected argument 'b'"},
    {"run m.gguf -p a -f b", 2, "both given"},
    {"run m.gguf text -p a", 2, "given twice"},
    {"run m.gguf -p a -p b", 2, "given twice"},
    {"run m.gguf --promtp a", 2, "did you mean --prompt"},
    {"run m.gguf -p", 2, "needs a value"},
    {"run m.gguf -p a -n", 2, "needs a value"},
    {"run m.gguf -p a -n many", 2, "not a whole number"},
    {"run m.gguf -p a -n 1.5", 2, "not a whole number"},
    {"run m.gguf -p a -n-2", 2, "outside"},
    {"run m.gguf -p a -n 99999999999999999999", 2, "outside"},
    {"run m.gguf -p a --temp hot", 2, "not a number"},
    {"run m.gguf -p a --temp nan", 2, "not a number"},
    {"run m.gguf -p a --temp -1", 2, "outside"},
    {"run m.gguf -p a --top-p 1.5", 2, "outside"},
    {"run m.gguf -p a --threads 5000", 2, "outside"},
    {"run m.gguf -p a --batch 0", 2, "outside"},
    {"run m.gguf -p a --backend gpu", 2, "none of auto|ref|cpu|cuda"},
    {"run m.gguf -p a --isa sse", 2, "none of"},
    {"run m.gguf -p a --raw=1", 2, "takes no value"},
    {"run m.gguf -p a -Z", 2, "unknown option -Z"},
    {"run @/absent.gguf -p a", 3, "absent.gguf"},
    {"run m.gguf -f @/absent.txt", 3, "absent.txt"},
    {"-m", 2, "unknown option -m"},
    {"chat @/absent.gguf", 3, "absent.gguf"},
    {"inspect", 2, "too few arguments"},
    {"inspect @/absent.gguf", 3, "absent.gguf"},
    {"inspect @/empty.gguf", 3, ""},
    {"inspect @/text.gguf", 3, ""},
    {"inspect @/short.gguf", 3, ""},
    {"inspect @", 3, ""},
    {"inspect -m @/absent.gguf", 3, "absent.gguf"},
    {"inspect -m a b", 2, "unexpected argument 'b'"},
    {"verify @/text.gguf", 3, ""},
    {"verify @/absent", 3, "absent"},
    {"quantize a", 2, "too few arguments"},
    {"quantize a --weights int8 --kv cq2", 2, "too few arguments"},
    {"quantize a --kv fp8", 2, "none of cq4|cq2|cq1"},
    {"run a --kv cq3 -p b", 2, "none of f32|bf16|fp8|cq4|cq2|cq1"},
    {"run a --activations int4 -p b", 2, "none of stored|int8"},
    {"quantize @/absent.gguf --kv cq2", 3, "absent.gguf"},
    {"quantize a b", 2, "--weights"},
    {"quantize a b --weights fp8-blok", 2, "did you mean 'fp8-block'"},
    {"quantize @/absent.gguf @/out --weights int8", 3, "absent.gguf"},
    {"quantize @/text.gguf @/out --weights int8", 3, ""},
    {"perplexity @/absent.gguf", 2, "no text"},
    {"perplexity @/absent.gguf -f @/text.gguf", 3, "absent.gguf"},
    {"perplexity a -f b --ctx 2", 2, "outside"},
    {"compare a", 2, "--file"},
    {"compare @/absent.gguf -f @/text.gguf", 3, "absent.gguf"},
    {"tokenize @/absent.gguf -p a", 3, "absent.gguf"},
    {"detokenize @/absent.gguf 1 2", 3, "absent.gguf"},
    {"logits a -p b", 2, "--out"},
    {"logits @/absent.gguf -p b --out @/out", 3, "absent.gguf"},
    {"op", 2, "too few arguments"},
    {"op scaled_m --in a --out b", 2, "did you mean 'scaled_mm'"},
    {"op scaled_mm --out b", 2, "--in"},
    {"op scaled_mm --in a", 2, "--out"},
    {"op scaled_mm --in a --out b out", 2, "KEY=VALUE"},
    {"op scaled_mm --in a --out b out=f31", 2, "out"},
    {"op scaled_mm --in a --out b nothing=1", 2, "nothing"},
    {"op scaled_mm --in @/absent --out @/out", 3, "absent"},
    {"op scaled_mm --in @/text.gguf --out @/out", 3, ""},
    {"op scaled_mm --in @/x.safetensors --out @/out", 3, "no input 'x'"},
    {"op quantize_fp8 --in @/x.safetensors --out @/out granularity=group group=0", 2, "group is 0"},
    {"op quantize_fp8 --in @/x.safetensors --out @/out mode=static", 3, "scale is missing"},
    {"op quantize_fp8 --in @/x.safetensors --out @/out scale_layout=col", 2, "scale_layout=col"},
    {"op quantize_int8 --in @/none.safetensors --out @/out", 3, "x"},
    {"op quantize_fp8 --in @/x.safetensors --out @/no/such/out", 1, ""},
    {"op quantize_fp8 --in @/x.safetensors --out @/x.safetensors", 1, "the input"},
    {"logits @/text.gguf -p b --out @/text.gguf", 1, "the input"},
    {"logits @ -p b --out @/text.gguf", 1, "a file of, the input"},
    {"logits @/absent.gguf -f @/text.gguf --out @/text.gguf", 1, "the input"},
    {"op quantize_int8 --in @/x.safetensors --out @/out --backend cuda", 5, "cuda"},
    {"explain", 2, "too few arguments"},
    {"explain nothing m=1", 2, "nothing"},
    {"explain scaled_mm m=x", 2, "size m is 'x', expected a whole number"},
    {"explain scaled_mm m=-1", 2, "size m is '-1'"},
    {"kernels a", 2, "unexpected argument"},
    {"kernels --filter (", 2, "regular expression"},
    {"doctor --jsno", 2, "did you mean --json"},
    {"doctor --isa sse", 2, "none of scalar|avx2"},
    {"quantize @/none @/out --weights int8 --isa sse", 2, "none of scalar|avx2"},
    {"warm --target sm_12", 2, "'sm_12' is none of all, sm_80"},
    {"warm --jit on", 2, "none of allow|cache|off"},
    {"bench", 2, "bench kernels"},
    {"bench everything", 2, "everything"},
    {"bench kernels --filter [", 2, "regular expression"},
    {"bench kernels --filter no_such_case", 2, "no case"},
    {"bench kernels --svg", 2, "needs a value"},
    {"bench kernels --svg=", 2, "empty"},
    {"bench kernels --filter no_such_case --svg @/out", 2, "no case"},
    {"bench kernels --filter rmsnorm --svg @/no/such/out", 1, "no/such/out"},
    {"bench kernels --memory 0.5", 2, "not a whole number"},
    {"doctor --measure=1", 2, "takes no value"},
    {"bench model", 2, "too few arguments"},
    {"bench model a -p 0 -n 0", 2, "nothing to measure"},
    {"bench model @/absent.gguf", 3, "absent.gguf"},
};

static outcome run_line(const char *line)
{
    char buffer[1024];
    const char *words[64];
    size_t n = 0;
    for (const char *p = line; *p && n < sizeof buffer - 80; p++) {
        if (*p == '@')
            n += (size_t)snprintf(buffer + n, sizeof buffer - n, "%s", folder);
        else
            buffer[n++] = *p;
    }
    buffer[n] = 0;
    split_words(buffer, words);
    return run_command(folder, words);
}

static int exists(const char *name)
{
    char path[512];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &s) == 0;
}

static void write_file(const char *name, const char *bytes, size_t count)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, count, out), count);
    assert_int_equal(fclose(out), 0);
}

static void write_tensor(const char *file, const char *name, const float *values, int64_t rows, int64_t columns)
{
    char path[512];
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(NULL, &ctx, &error), QN_OK);
    qn_shape shape = qn_shape_make(QN_F32, 2, rows, columns, 1, 1);
    qn_named_view view = {name, qn_view_make(values, &shape)};
    snprintf(path, sizeof path, "%s/%s", folder, file);
    assert_int_equal(qn_tensors_write(ctx, path, &view, 1, NULL, 0, &error), QN_OK);
    qn_ctx_destroy(ctx);
}

static int setup(void **state)
{
    (void)state;
    static const float x[8] = {1, -2, 3, -4, 127, -64, 0, 1};
    if (!getenv("QN_CLI") || make_folder(folder) != 0)
        return -1;
    write_file("empty.gguf", "", 0);
    write_file("text.gguf", "this is no model at all, only some text", 39);
    write_file("short.gguf", "GGUF\3\0\0\0\377\377\377\377\377\377\377\177", 16);
    write_tensor("x.safetensors", "x", x, 2, 4);
    write_tensor("none.safetensors", "scale", x, 1, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static void failures_give_code_and_one_line(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof situations / sizeof *situations; i++) {
        const situation *s = &situations[i];
        outcome r = run_line(s->line);
        const char *end = strchr(r.err, '\n');
        int one_line = end && end[1] == 0 && strncmp(r.err, "quern", 5) == 0;
        if (r.code != s->code || !one_line || !strstr(r.err, s->words) || r.out_bytes || exists("out")) {
            printf("quern %s: code %d (expected %d), stdout %zu bytes, out %s, stderr: %s\n", s->line, r.code, s->code,
                   r.out_bytes, exists("out") ? "exists" : "absent", r.err);
            bad++;
        }
        free_outcome(&r);
    }
    assert_int_equal(bad, 0);
}

/* Every --name that help shows is in the manual and in the three completions. */
static void help_manual_and_completion_agree(void **state)
{
    (void)state;
    static const char *const verbs[] = {
        "run",      "chat",          "inspect",     "verify",  "quantize", "perplexity", "compare",
        "tokenize", "detokenize",    "logits",      "op",      "kernels",  "explain",    "doctor",
        "warm",     "bench kernels", "bench model", "version", "help"};
    outcome help = run_line("--help"), man = run_line("--man");
    outcome bash = run_line("--completion bash"), zsh = run_line("--completion zsh"),
            fish = run_line("--completion fish");
    assert_int_equal(help.code + man.code + bash.code + zsh.code + fish.code, 0);
    assert_non_null(strstr(man.out, ".TH QUERN 1"));
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        char line[128];
        snprintf(line, sizeof line, "\n  %s ", verbs[v]);
        assert_non_null(strstr(help.out, line));
        snprintf(line, sizeof line, "\n.SS quern %s ", verbs[v]);
        assert_non_null(strstr(man.out, line));
        snprintf(line, sizeof line, "\"%s\") words=", verbs[v]);
        assert_non_null(strstr(bash.out, line));
        snprintf(line, sizeof line, "'%s')", verbs[v]);
        assert_non_null(strstr(zsh.out, line));
        snprintf(line, sizeof line, "%s --help", verbs[v]);
        outcome r = run_line(line);
        assert_int_equal(r.code, 0);
        assert_int_equal(r.err_bytes, 0);
        snprintf(line, sizeof line, "help %s", verbs[v]);
        outcome again = run_line(line);
        assert_string_equal(r.out, again.out);
        free_outcome(&again);
        for (const char *p = strstr(r.out, "options:"); p && (p = strstr(p, "--")) != NULL; p++) {
            char name[64], escaped[128];
            size_t n = strcspn(p + 2, " ,\n:;)'"), e = 0;
            if (p[-1] != ' ' || n == 0 || n >= sizeof name || strncmp(p - 2, "--", 2) == 0)
                continue;
            snprintf(name, sizeof name, "--%.*s", (int)(n > 60 ? 60 : n), p + 2);
            for (const char *q = name; *q; q++)
                e += (size_t)snprintf(escaped + e, sizeof escaped - e, *q == '-' ? "\\-" : "%c", *q);
            if (!strstr(man.out, escaped) || !strstr(bash.out, name) || !strstr(zsh.out, name))
                printf("%s of %s\n", name, verbs[v]);
            assert_non_null(strstr(man.out, escaped));
            assert_non_null(strstr(bash.out, name));
            assert_non_null(strstr(zsh.out, name));
            snprintf(line, sizeof line, " -l %s ", name + 2);
            assert_non_null(strstr(fish.out, line));
        }
        free_outcome(&r);
    }
    free_outcome(&help);
    free_outcome(&man);
    free_outcome(&bash);
    free_outcome(&zsh);
    free_outcome(&fish);
}

static void reports_work(void **state)
{
    (void)state;
    static const char *const lines[] = {"--version",
                                        "version",
                                        "doctor",
                                        "doctor --json",
                                        "doctor --isa scalar",
                                        "kernels",
                                        "kernels --json",
                                        "quantize --list",
                                        "quantize --list --json",
                                        "explain scaled_mm m=1 n=576 k=576",
                                        "explain dense_mm m=1 n=64 k=64 --backend=ref",
                                        "explain block_scaled_mm m=1 n=576 k=640 --target sm_90a"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        outcome r = run_line(lines[i]);
        if (r.code != 0)
            printf("quern %s: %d %s\n", lines[i], r.code, r.err);
        assert_int_equal(r.code, 0);
        assert_true(r.out_bytes > 8);
        assert_int_equal(r.err_bytes, 0);
        if (strstr(lines[i], "--json"))
            assert_true((r.out[0] == '[' || r.out[0] == '{') && strchr(r.out, '\n') == r.out + r.out_bytes - 1);
        free_outcome(&r);
    }
}

/* The line of an operator in doctor's report. */
static const char *doctor_line(const outcome *r, const char *name, char line[256])
{
    const char *at = strstr(r->out, name);
    assert_non_null(at);
    snprintf(line, 256, "%.*s", (int)strcspn(at, "\n"), at);
    return line;
}

/* Every operator has a line, which blames the machine only for levels that have a kernel for the case. */
static void doctor_tells_of_every_operator(void **state)
{
    (void)state;
    static const char *const names[] = {"\nscaled_attention ", "\nvq_mm aqlm-2x8 ", "\nvq_mm gptvq ",
                                        "\nvq_mm quip_e8p ",   "\nvq_mm vptq ",     "\nvq_dequantize ",
                                        "\nvq_attention ",     "\nvq_encode ",      "\ndense_mm q4_0 "};
    char line[256];
    outcome r = run_line("doctor");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(strstr(r.out, names[i]));
    assert_null(strstr(doctor_line(&r, "dense_mm f32 ", line), "amx"));
    assert_null(strstr(doctor_line(&r, "vq_mm vptq ", line), "amx"));
    free_outcome(&r);
    r = run_line("doctor --isa scalar");
    assert_non_null(strstr(doctor_line(&r, "dense_mm f32 ", line), " scalar "));
    assert_non_null(strstr(doctor_line(&r, "vq_mm vptq ", line), " scalar "));
    free_outcome(&r);
}

/* A rung of vq_mm says on a CPU, too, which kernels may run. */
static void a_rung_chooses_the_kernel(void **state)
{
    (void)state;
    static const struct {
        const char *words, *least, *chosen;
    } rungs[] = {
        {"n=1024 k=1024 level=gc", "scalar", "_books\n"},
        {"n=1024 k=1024 level=o4", "scalar", "_books\n"},
        {"n=1024 k=1024", "avx2", "_sums\n"},
        {"n=1024 k=1024 format=gptvq level=o1", "avx512vnni", "_books\n"},
        {"n=1024 k=1024 format=gptvq level=o2", "avx512vnni", "_tiles\n"},
        {"n=1024 k=1024 format=quip_e8p level=gc", "avx2", "_books\n"},
        {"n=1024 k=1024 format=quip_e8p level=sc --isa avx2", "avx2", "_lattice\n"},
    };
    outcome machine = run_line("doctor");
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
        char line[256];
        snprintf(line, sizeof line, "isa %s: yes\n", rungs[i].least);
        if (!strstr(machine.out, line)) {
            print_message("skipped vq_mm %s: this machine has no %s\n", rungs[i].words, rungs[i].least);
            continue;
        }
        snprintf(line, sizeof line, "explain vq_mm m=1 %s --backend cpu", rungs[i].words);
        outcome r = run_line(line);
        const char *chosen = strstr(r.out, "\nchosen: ");
        assert_non_null(chosen);
        const char *end = strchr(chosen + 1, '\n') + 1;
        assert_true(end - chosen > 9 &&
                    strncmp(end - strlen(rungs[i].chosen), rungs[i].chosen, strlen(rungs[i].chosen)) == 0);
        free_outcome(&r);
    }
    free_outcome(&machine);
}

/* A device that is not here is explained: its kernels are candidates, and what they do is not measured against this
 * processor's arithmetic. */
static void an_absent_device_is_explained(void **state)
{
    (void)state;
    static const struct {
        const char *line, *chosen;
    } cases[] = {
        {"explain block_scaled_mm m=64 n=4096 k=7168 --target sm_90a",
         "chosen: qn_block_scaled_mm_e4m3_e4m3_fp__sm90a"},
        {"explain block_scaled_mm m=64 n=4096 k=7168 --target sm_80", "chosen: qn_block_scaled_mm_e4m3_f8_fp__sm80"},
        {"explain vq_mm m=1 n=4096 k=4096 --target sm_90a", "a typical sm_90a, not here"},
        {"explain block_scaled_mm m=64 n=4096 k=7168 --target sm_90a --backend cpu", "chosen: qn_block_scaled_mm_e4m3"},
        {"explain rmsnorm m=1 k=64 --target sm_90a", "status: tested on sm_90a"},
        {"explain rmsnorm m=1 k=64 --target sm_89", "status: compiled, not run, for sm_89"},
        {"explain block_scaled_mm m=64 n=4000 k=7168 --target sm_90a", "tiles of 64 x 80, 2 parts of K: estimate"},
        {"explain scaled_mm m=512 n=4096 k=7168 --target sm_90a", "cut: tiles of"},
        {"explain scaled_mm m=8 n=4096 k=7168 --target sm_90a", "cut: strips of"},
        {"explain grouped_block_scaled_mm m=900 n=4096 k=512 e=6 layout=masked --target sm_90a", ": estimate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome r = run_line(cases[i].line);
        assert_int_equal(r.code, 0);
        if (!strstr(r.out, cases[i].chosen))
            printf("quern %s: %s\n", cases[i].line, r.out);
        assert_non_null(strstr(r.out, cases[i].chosen));
        assert_true(strstr(cases[i].line, "--backend cpu") || !strstr(r.out, "fp32_fma"));
        free_outcome(&r);
    }
    outcome wrong = run_line("explain scaled_mm m=1 n=576 k=576 --target sm_99");
    assert_int_equal(wrong.code, 2);
    free_outcome(&wrong);
}

/* x = [1,-2,3,-4; 127,-64,0,1] by tokens: scales 4/127 and 1, the second row is itself. */
static void op_quantizes_a_file(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "op quantize_int8 --in @/x.safetensors --out @/q.safetensors granularity=token --backend ref",
        "op quantize_int8 -i @/x.safetensors --out=@/q.safetensors granularity=token -t2 --repeat 3"};
    for (int i = 0; i < 2; i++) {
        outcome r = run_line(lines[i]);
        if (r.code != 0)
            printf("%s\n", r.err);
        assert_int_equal(r.code, 0);
        assert_int_equal(r.out_bytes > 0, i == 1);
        if (i == 1) {
            assert_non_null(strstr(r.out, "\"op\":\"quantize_int8\""));
            assert_non_null(strstr(r.out, "\"us_median\":"));
        }
        free_outcome(&r);
        char path[512];
        qn_ctx *ctx = NULL;
        qn_tensors *file = NULL;
        qn_error error = {0};
        const char *name;
        qn_view q, scale;
        snprintf(path, sizeof path, "%s/q.safetensors", folder);
        assert_int_equal(qn_ctx_create(NULL, &ctx, &error), QN_OK);
        assert_int_equal(qn_tensors_open(ctx, path, &file, &error), QN_OK);
        assert_int_equal(qn_tensors_count(file), 2);
        assert_int_equal(qn_tensors_at(file, qn_tensors_find(file, "q"), &name, &q, &error), QN_OK);
        assert_int_equal(qn_tensors_at(file, qn_tensors_find(file, "scale"), &name, &scale, &error), QN_OK);
        static const int8_t want[8] = {32, -64, 95, -127, 127, -64, 0, 1};
        assert_memory_equal(q.data, want, sizeof want);
        float scales[2];
        memcpy(scales, scale.data, sizeof scales);
        assert_true(scales[0] == 4.0f / 127.0f && scales[1] == 1.0f);
        qn_tensors_close(file);
        qn_ctx_destroy(ctx);
    }
}

/* A failing call leaves an existing output as it was and no temporary file beside it. */
static void a_failing_op_keeps_the_old_output(void **state)
{
    (void)state;
    write_file("kept", "old content", 11);
    outcome r = run_line("op quantize_int8 --in @/none.safetensors --out @/kept");
    assert_int_equal(r.code, 3);
    free_outcome(&r);
    char path[512], line[600];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/kept", folder);
    char *text = slurp(path, &bytes);
    assert_string_equal(text, "old content");
    free(text);
    snprintf(line, sizeof line, "test \"$(ls -A %s | grep -c kept)\" = 1", folder);
    assert_int_equal(system(line), 0);
}

/* A file of another writer: an F32 tensor that begins two bytes after a multiple of four. */
static void an_op_takes_unaligned_tensors(void **state)
{
    (void)state;
    static const char header[] = "{\"x\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[0,2]},"
                                 "\"scale\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}       ";
    static const char data[6] = {0, 0x40, 0, 0, 0, 0x3f}; /* 2, 0.5 */
    char file[256] = {0};
    const size_t n = sizeof header - 1; /* a multiple of 8 */
    assert_int_equal(n % 8, 0);
    file[0] = (char)n;
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, data, sizeof data);
    write_file("unaligned.safetensors", file, 8 + n + sizeof data);
    outcome r = run_line("op quantize_fp8 --in @/unaligned.safetensors --out @/fp8 mode=static");
    assert_int_equal(r.code, 0);
    free_outcome(&r);
    char path[512];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/fp8", folder);
    char *out = slurp(path, &bytes);
    assert_true(bytes > 8);
    int found = 0;
    for (size_t i = 8; i < bytes; i++)
        found |= out[i] == 0x48; /* the code of 4 */
    assert_true(found);
    free(out);
}

/* QuIP# in 4 bits: four words a row are 64 columns of two codebooks, or 128 of one; codebook_id tells. */
static void codebook_id_says_what_the_shape_does_not(void **state)
{
    (void)state;
    static const int64_t words[16 * 4], id = 17;
    const qn_shape qidxs = qn_shape_make(QN_I64, 2, 16, 4, 1, 1), one = qn_shape_make(QN_I64, 1, 1, 1, 1, 1);
    const qn_named_view views[] = {{"Qidxs", qn_view_make(words, &qidxs)}, {"codebook_id", qn_view_make(&id, &one)}};
    for (int named = 0; named < 2; named++) {
        char path[512];
        qn_ctx *ctx = NULL;
        qn_tensors *file = NULL;
        qn_error error = {0};
        const char *name;
        qn_view w;
        assert_int_equal(qn_ctx_create(NULL, &ctx, &error), QN_OK);
        snprintf(path, sizeof path, "%s/quip.safetensors", folder);
        assert_int_equal(qn_tensors_write(ctx, path, views, 1 + named, NULL, 0, &error), QN_OK);
        outcome r = run_line("op vq_dequantize format=quip_e8p --in @/quip.safetensors --out @/w.safetensors");
        assert_int_equal(r.code, 0);
        free_outcome(&r);
        snprintf(path, sizeof path, "%s/w.safetensors", folder);
        assert_int_equal(qn_tensors_open(ctx, path, &file, &error), QN_OK);
        assert_int_equal(qn_tensors_at(file, 0, &name, &w, &error), QN_OK);
        assert_int_equal(w.shape.dims[1], named ? 64 : 128);
        qn_tensors_close(file);
        qn_ctx_destroy(ctx);
    }
    outcome r = run_line("op vq_dequantize format=quip_e8p codebook=E8P12 --in @/quip.safetensors --out @/out");
    assert_int_equal(r.code, 3);
    assert_non_null(strstr(r.err, "codebook_id is 17, expected 7"));
    free_outcome(&r);
}

static void a_full_disk_is_a_failure_and_a_closed_pipe_is_not(void **state)
{
    (void)state;
    char line[1024];
    struct stat s;
    int status;
    if (stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode)) {
        snprintf(line, sizeof line, "'%s' kernels > /dev/full 2> %s/full", getenv("QN_CLI"), folder);
        status = system(line);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    } else {
        printf("skipped: the full disk, because this machine has no device /dev/full\n");
    }
    static const float x[64 * 64];
    write_tensor("wide.safetensors", "x", x, 64, 64);
    snprintf(line, sizeof line,
             "(ulimit -f 1; exec '%s' op quantize_fp8 --in %s/wide.safetensors --out %s/wide.out) 2> %s/full",
             getenv("QN_CLI"), folder, folder, folder);
    status = system(line);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    snprintf(line, sizeof line, "test $(wc -l < %s/full) = 1 && ! ls -A %s | grep -q wide.out", folder, folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line,
             "('%s' --man; echo $? > %s/rc) 2> %s/pipe | true; sleep 0.1; test ! -s %s/pipe && grep -qx 0 %s/rc",
             getenv("QN_CLI"), folder, folder, folder, folder);
    status = system(line);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    if (!getenv("QN_CLI")) {
        printf("QN_CLI does not name the command: nothing can be tested\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures_give_code_and_one_line),
                                       cmocka_unit_test(help_manual_and_completion_agree),
                                       cmocka_unit_test(reports_work),
                                       cmocka_unit_test(doctor_tells_of_every_operator),
                                       cmocka_unit_test(a_rung_chooses_the_kernel),
                                       cmocka_unit_test(an_absent_device_is_explained),
                                       cmocka_unit_test(op_quantizes_a_file),
                                       cmocka_unit_test(a_failing_op_keeps_the_old_output),
                                       cmocka_unit_test(an_op_takes_unaligned_tensors),
                                       cmocka_unit_test(codebook_id_says_what_the_shape_does_not),
                                       cmocka_unit_test(a_full_disk_is_a_failure_and_a_closed_pipe_is_not)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
