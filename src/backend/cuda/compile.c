/* Run-time compilation: parameters and a fixed body to a cubin for an exact
 * target, by NVRTC opened with dlopen. All headers a source may include are
 * those embedded beside it, so nothing outside the key changes the result. */
#include "backend/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_STATIC_LINKING_ONLY /* the state's size, for one on the stack */
#include <xxhash.h>

#include <quern/version.h>

enum { MOST_HEADERS = 64 };

/* fmad off: a kernel that wants a fused multiply-add says so. 177: a header's function may go unused. minimal: without
 * the runtime's types and textures, which take 8 ms to read; NVRTC knows it from 12.4 on, so it is the last. */
const char *const qn_cuda_options[] = {"--std=c++17", "--fmad=false", "--ptxas-options=-v", "--diag-suppress=177",
                                       "--minimal"};
const int32_t qn_cuda_option_count = (int32_t)(sizeof qn_cuda_options / sizeof *qn_cuda_options);

void qn_cuda_define(qn_cuda_program *program, const char *name, int64_t value)
{
    const size_t used = strlen(program->params);
    snprintf(program->params + used, sizeof program->params - used, "#define %s %lld\n", name, (long long)value);
}

void qn_cuda_image_free(const qn_cuda *cuda, qn_cuda_image *image)
{
    qn_free(cuda->ctx, image->cubin);
    qn_free(cuda->ctx, image->log);
    *image = (qn_cuda_image){0};
}

static const qn_cuda_source *find_source(const char *name)
{
    for (const qn_cuda_source *s = qn_cuda_sources; s->name; s++) {
        if (strcmp(s->name, name) == 0) {
            return s;
        }
    }
    return NULL;
}

static int is_header(const qn_cuda_source *source)
{
    const char *dot = strrchr(source->name, '.');
    return dot && strcmp(dot, ".h") == 0;
}

/* Every text with its length before it, so that none runs into the next. */
static void hash_text(XXH3_state_t *hash, const char *text, size_t bytes)
{
    const uint64_t length = bytes;
    XXH3_128bits_update(hash, &length, sizeof length);
    XXH3_128bits_update(hash, text, bytes);
}

qn_status qn_cuda_key_make(const qn_cuda_program *program, qn_cuda_target target, qn_cuda_key *key, qn_error *error)
{
    const qn_cuda_source *body = find_source(program->source);
    QN_FAIL_IF(!body, error, QN_E_INTERNAL, "kernels/cuda/%s is not among the embedded sources", program->source);
    QN_FAIL_IF(strlen(program->params) + 1 >= sizeof program->params, error, QN_E_INTERNAL,
               "the parameters of %s do not fit", program->entry);
    XXH3_state_t hash;
    XXH3_128bits_reset(&hash);
    const char *const name = qn_cuda_target_name(target);
    hash_text(&hash, QN_VERSION_STRING, strlen(QN_VERSION_STRING));
    hash_text(&hash, name, strlen(name));
    for (int32_t i = 0; i < qn_cuda_option_count; i++) {
        hash_text(&hash, qn_cuda_options[i], strlen(qn_cuda_options[i]));
    }
    hash_text(&hash, program->params, strlen(program->params));
    for (const qn_cuda_source *s = qn_cuda_sources; s->name; s++) {
        if (s == body || is_header(s)) {
            hash_text(&hash, s->name, strlen(s->name));
            hash_text(&hash, s->text, s->bytes);
        }
    }
    const XXH128_hash_t digest = XXH3_128bits_digest(&hash);
    *key = (qn_cuda_key){.high = digest.high64, .low = digest.low64, .target = target};
    snprintf(key->entry, sizeof key->entry, "%.*s-%s-%016llx%016llx", (int)strcspn(body->name, "."), body->name, name,
             (unsigned long long)key->high, (unsigned long long)key->low);
    return QN_OK;
}

char *qn_cuda_source_text(const qn_cuda *cuda, const qn_cuda_program *program)
{
    const qn_cuda_source *body = find_source(program->source);
    qn_buffer text = qn_buffer_make(cuda->ctx);
    if (body) {
        qn_buffer_print(&text, "%s#line 1 \"%s\"\n", program->params, body->name);
        qn_buffer_add(&text, body->text, body->bytes);
    }
    if (text.failed || !body) {
        qn_buffer_free(&text);
        return NULL;
    }
    return text.data;
}

/* ---- NVRTC ---- */

#define NAME(member, symbol, type, parameters) symbol,

/* Versions without a number first: the one the system prefers. */
static void *open_library(const char *file)
{
    static const char *const files[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    void *handle = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    for (size_t i = 0; !file && !handle && i < sizeof files / sizeof *files; i++) {
        handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return handle;
}

/* Version and size of the file: two builds of one version differ in size. */
static void identify(qn_cuda *cuda, const void *symbol)
{
    int32_t major = 0, minor = 0;
    long long bytes = 0;
    Dl_info info;
    struct stat file;
    cuda->nvrtc.Version(&major, &minor);
    if (dladdr(symbol, &info) && info.dli_fname && stat(info.dli_fname, &file) == 0) {
        bytes = (long long)file.st_size;
    }
    snprintf(cuda->compiler, sizeof cuda->compiler, "nvrtc-%d.%d-%lld", major, minor, bytes);
    cuda->nvrtc_options = qn_cuda_option_count - (major < 12 || (major == 12 && minor < 4));
}

static void load_nvrtc(qn_cuda *cuda)
{
    static const char *const names[] = {QN_NVRTC_FUNCTIONS(NAME)};
    _Static_assert(sizeof(qn_nvrtc_api) == sizeof names, "the table holds function pointers only");
    if (!QN_CUDA_LOADS) {
        snprintf(cuda->no_compiler, sizeof cuda->no_compiler, "a statically linked program cannot load NVRTC");
        return;
    }
    cuda->nvrtc_handle = open_library(cuda->ctx->nvrtc_library);
    if (!cuda->nvrtc_handle) {
        const char *why = dlerror();
        snprintf(cuda->no_compiler, sizeof cuda->no_compiler, "NVRTC cannot be loaded (%s)", why ? why : "no reason");
        return;
    }
    void *symbol = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        symbol = dlsym(cuda->nvrtc_handle, names[i]);
        if (!symbol) {
            snprintf(cuda->no_compiler, sizeof cuda->no_compiler, "the NVRTC found lacks %s", names[i]);
            return;
        }
        memcpy((char *)&cuda->nvrtc + i * sizeof symbol, &symbol, sizeof symbol);
    }
    identify(cuda, symbol);
}

qn_status qn_cuda_nvrtc(qn_cuda *cuda, qn_error *error)
{
    if (!cuda->nvrtc_tried) {
        cuda->nvrtc_tried = 1;
        load_nvrtc(cuda);
    }
    QN_FAIL_IF(!*cuda->compiler, error, QN_E_JIT, "%s", cuda->no_compiler);
    return QN_OK;
}

static qn_status check_nvrtc(const qn_cuda *cuda, nvrtc_result result, const char *call, qn_error *error)
{
    QN_FAIL_IF(result != 0, error, QN_E_JIT, "%s: %s", call, cuda->nvrtc.GetErrorString(result));
    return QN_OK;
}

static qn_status take_log(const qn_cuda *cuda, nvrtc_program handle, qn_cuda_image *image, qn_error *error)
{
    size_t bytes = 0;
    QN_TRY(check_nvrtc(cuda, cuda->nvrtc.GetLogSize(handle, &bytes), "nvrtcGetProgramLogSize", error));
    image->log = qn_calloc(cuda->ctx, bytes + 1, 1);
    QN_FAIL_IF(!image->log, error, QN_E_MEMORY, "out of memory for a compiler's log");
    return bytes ? check_nvrtc(cuda, cuda->nvrtc.GetLog(handle, image->log), "nvrtcGetProgramLog", error) : QN_OK;
}

static qn_status compile_program(const qn_cuda *cuda, nvrtc_program handle, const qn_cuda_program *program,
                                 qn_cuda_target target, qn_cuda_image *image, qn_error *error)
{
    char architecture[48];
    const char *options[16] = {architecture};
    _Static_assert(sizeof qn_cuda_options / sizeof *qn_cuda_options < 16, "room for the target");
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", qn_cuda_target_name(target));
    memcpy(&options[1], qn_cuda_options, sizeof qn_cuda_options);
    const nvrtc_result result = cuda->nvrtc.CompileProgram(handle, cuda->nvrtc_options + 1, options);
    QN_TRY(take_log(cuda, handle, image, error));
    if (result != 0) {
        const char *first = strstr(image->log, "error");
        while (first && first > image->log && first[-1] != '\n') {
            first--;
        }
        first = first ? first : image->log;
        QN_FAIL(error, QN_E_JIT, "kernels/cuda/%s for %s: %s: %.*s", program->source, qn_cuda_target_name(target),
                cuda->nvrtc.GetErrorString(result), (int)strcspn(first, "\n"), first);
    }
    QN_TRY(check_nvrtc(cuda, cuda->nvrtc.GetCubinSize(handle, &image->cubin_bytes), "nvrtcGetCUBINSize", error));
    image->cubin = qn_alloc(cuda->ctx, image->cubin_bytes);
    QN_FAIL_IF(!image->cubin, error, QN_E_MEMORY, "out of memory for a cubin (%zu bytes)", image->cubin_bytes);
    return check_nvrtc(cuda, cuda->nvrtc.GetCubin(handle, image->cubin), "nvrtcGetCUBIN", error);
}

qn_status qn_cuda_compile(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_target target, qn_cuda_image *image,
                          qn_error *error)
{
    const char *names[MOST_HEADERS], *texts[MOST_HEADERS];
    int32_t count = 0;
    *image = (qn_cuda_image){0};
    QN_TRY(qn_cuda_nvrtc(cuda, error));
    for (const qn_cuda_source *s = qn_cuda_sources; s->name; s++) {
        if (is_header(s)) {
            QN_FAIL_IF(count == MOST_HEADERS, error, QN_E_INTERNAL, "more than %d device headers", MOST_HEADERS);
            names[count] = s->name;
            texts[count++] = s->text;
        }
    }
    char *source = qn_cuda_source_text(cuda, program);
    QN_FAIL_IF(!source, error, QN_E_MEMORY, "out of memory for the source of %s", program->entry);
    nvrtc_program handle = NULL;
    qn_status status =
        check_nvrtc(cuda, cuda->nvrtc.CreateProgram(&handle, source, program->source, count, texts, names),
                    "nvrtcCreateProgram", error);
    if (status == QN_OK) {
        status = compile_program(cuda, handle, program, target, image, error);
        cuda->nvrtc.DestroyProgram(&handle);
    }
    qn_free(cuda->ctx, source);
    if (status != QN_OK) {
        qn_cuda_image_free(cuda, image);
    }
    return status;
}
