/* Files of finished tensors: see resume.h. */
#include "quant/resume.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <quern/version.h>

#define XXH_STATIC_LINKING_ONLY /* the state as a complete type, for our own allocation */
#include <xxhash.h>

#include "backend/cpu/fit.h"
#include "base/commit.h"
#include "base/text.h"

#define SUFFIX ".part"

enum { NAME = 32 + sizeof SUFFIX }; /* hex digits, suffix, zero */

typedef struct part_header {
    char magic[8];
    qn_resume_key key;
    uint64_t bytes; /* of the data */
    double rms;
    uint64_t sum_high, sum_low; /* of the data, its size and rms as seed */
} part_header;

_Static_assert(sizeof(part_header) == 56, "no padding");

static const char magic[8] = "quernp1";

struct qn_resume_file {
    qn_resume *resume;
    qn_commit *commit;
    FILE *out;
    part_header header;
    XXH3_state_t hash;
};

static void name_of(const qn_resume_key *key, char name[NAME])
{
    snprintf(name, NAME, "%016llx%016llx" SUFFIX, (unsigned long long)key->high, (unsigned long long)key->low);
}

static char *path_of(const qn_resume *r, const char *name)
{
    qn_buffer text = qn_buffer_make(r->ctx);
    qn_buffer_print(&text, "%s/%s", r->folder, name);
    if (text.failed) {
        qn_buffer_free(&text);
        return NULL;
    }
    return text.data;
}

qn_status qn_resume_begin(qn_ctx *ctx, const char *output, qn_resume *resume, qn_error *error)
{
    size_t length = strlen(output);
    while (length > 1 && output[length - 1] == '/') {
        length--;
    }
    qn_buffer text = qn_buffer_make(ctx);
    qn_buffer_add(&text, output, length);
    qn_buffer_print(&text, ".unfinished");
    if (text.failed) {
        qn_buffer_free(&text);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for a folder's name");
    }
    struct stat info;
    if (mkdir(text.data, 0777) != 0 && (errno != EEXIST || stat(text.data, &info) != 0 || !S_ISDIR(info.st_mode))) {
        const qn_status status =
            qn_error_set(error, QN_E_IO, "cannot make the folder %s: %s", text.data, strerror(errno));
        qn_buffer_free(&text);
        return status;
    }
    *resume = (qn_resume){.ctx = ctx, .folder = text.data};
    return QN_OK;
}

/* A file of ours, or one that a killed run was writing. */
static int is_ours(const char *name)
{
    const char *suffix = strstr(name, SUFFIX);
    return suffix && suffix - name == 32 + (name[0] == '.');
}

void qn_resume_end(qn_resume *resume, int done)
{
    if (!resume->folder) {
        return;
    }
    DIR *folder = done ? opendir(resume->folder) : NULL;
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (is_ours(e->d_name)) {
            (void)unlinkat(dirfd(folder), e->d_name, 0);
        }
    }
    if (folder) {
        closedir(folder);
    }
    (void)rmdir(resume->folder);
    qn_free(resume->ctx, resume->folder);
    resume->folder = NULL;
}

int qn_resume_worth(const qn_output *output)
{
    return output->scheme->scales == QN_SCALES_VECTOR || output->encoder.feedback != NULL;
}

/* Which fitting loops run here: each level adds in an order of its own. */
static int32_t fit_level(const qn_ctx *ctx)
{
    const qn_fit_set *set = qn_cpu_fit(ctx);
    return set == &qn_fit__avx512 ? 2 : set == &qn_fit__avx2 ? 1 : 0;
}

static void add_floats(XXH3_state_t *hash, const float *values, size_t count)
{
    const uint64_t there = values ? count : 0;
    XXH3_128bits_update(hash, &there, sizeof there);
    if (values) {
        XXH3_128bits_update(hash, values, count * sizeof *values);
    }
}

qn_status qn_resume_key_of(const qn_resume *resume, const qn_output *output, qn_resume_key *key, qn_error *error)
{
    const qn_encoder *e = &output->encoder;
    const size_t k = (size_t)e->k;
    float *row = qn_calloc(resume->ctx, k ? k : 1, sizeof *row);
    QN_FAIL_IF(!row, error, QN_E_MEMORY, "out of memory quantising tensor %s", output->weight->name);
    char text[128] = {0};
    XXH3_state_t hash;
    XXH3_128bits_reset(&hash);
    snprintf(text, sizeof text, "%s %s %s", magic, QN_VERSION_STRING, output->scheme->name);
    XXH3_128bits_update(&hash, text, sizeof text);
    const int64_t numbers[] = {e->n, e->k, fit_level(resume->ctx), e->search};
    XXH3_128bits_update(&hash, numbers, sizeof numbers);
    const float scales[] = {e->global_scale, output->input_amax};
    add_floats(&hash, scales, 2);
    add_floats(&hash, output->squares, k * k);
    add_floats(&hash, e->feedback, k * k);
    add_floats(&hash, e->importance, k);
    if (e->order) {
        XXH3_128bits_update(&hash, e->order, k * sizeof *e->order);
    }
    for (int64_t n = 0; n < e->n; n++) {
        qn_output_decode_row(output, n, row);
        XXH3_128bits_update(&hash, row, k * sizeof *row);
    }
    const XXH128_hash_t digest = XXH3_128bits_digest(&hash);
    *key = (qn_resume_key){digest.high64, digest.low64};
    qn_free(resume->ctx, row);
    return QN_OK;
}

static uint64_t bytes_of(const qn_output *output)
{
    uint64_t sum = 0;
    for (int p = 0; p < QN_PART_COUNT; p++) {
        sum += output->names[p] ? output->bytes[p] : 0;
    }
    return sum;
}

/* Data, size and rms in one sum. */
static XXH128_hash_t sum_of(XXH3_state_t *hash, const part_header *header)
{
    XXH3_128bits_update(hash, &header->bytes, sizeof header->bytes);
    XXH3_128bits_update(hash, &header->rms, sizeof header->rms);
    return XXH3_128bits_digest(hash);
}

static int fits(const qn_file_map *map, const qn_resume_key *key, uint64_t bytes, part_header *header)
{
    if (map->size < sizeof *header) {
        return 0;
    }
    memcpy(header, map->data, sizeof *header);
    if (memcmp(header->magic, magic, sizeof magic) != 0 || header->key.high != key->high ||
        header->key.low != key->low || header->bytes != bytes || map->size - sizeof *header != bytes) {
        return 0;
    }
    XXH3_state_t hash;
    XXH3_128bits_reset(&hash);
    XXH3_128bits_update(&hash, (const char *)map->data + sizeof *header, bytes);
    const XXH128_hash_t sum = sum_of(&hash, header);
    return sum.high64 == header->sum_high && sum.low64 == header->sum_low;
}

int qn_resume_find(const qn_resume *resume, const qn_resume_key *key, const qn_output *output, qn_file_map *map,
                   const uint8_t **data, double *rms)
{
    char name[NAME];
    part_header header;
    name_of(key, name);
    char *path = path_of(resume, name);
    *map = (qn_file_map){0};
    int found = path && access(path, F_OK) == 0 && qn_file_map_open(path, map, NULL) == QN_OK;
    if (found && !fits(map, key, bytes_of(output), &header)) {
        qn_log(resume->ctx, QN_LOG_WARN, "%s is damaged: tensor %s is quantised again", path, output->name);
        qn_file_map_close(map);
        found = 0;
    }
    if (found) {
        *data = (const uint8_t *)map->data + sizeof header;
        *rms = header.rms;
    }
    qn_free(resume->ctx, path);
    return found;
}

/* ---- writing ---- */

static void give_up(qn_resume *r, const char *why)
{
    r->failed = 1;
    qn_log(r->ctx, QN_LOG_WARN, "finished tensors are not kept in %s any more: %s", r->folder, why);
}

qn_resume_file *qn_resume_start(qn_resume *resume, const qn_resume_key *key)
{
    char name[NAME];
    qn_error error = {0};
    if (!resume->folder || resume->failed) {
        return NULL;
    }
    name_of(key, name);
    char *path = path_of(resume, name);
    qn_resume_file *file = qn_alloc(resume->ctx, sizeof *file);
    if (!path || !file) {
        give_up(resume, "out of memory");
    } else if (qn_commit_begin(resume->ctx, path, 0, 1, &file->commit, &error) != QN_OK) {
        give_up(resume, error.text);
    } else if (!(file->out = fopen(qn_commit_path(file->commit), "wb"))) {
        give_up(resume, strerror(errno));
        qn_commit_destroy(file->commit);
    } else {
        file->resume = resume;
        file->header = (part_header){.key = *key};
        memcpy(file->header.magic, magic, sizeof magic);
        XXH3_128bits_reset(&file->hash);
        (void)fwrite(&file->header, sizeof file->header, 1, file->out);
        qn_free(resume->ctx, path);
        return file;
    }
    qn_free(resume->ctx, path);
    qn_free(resume->ctx, file);
    return NULL;
}

void qn_resume_add(qn_resume_file *file, const void *data, size_t bytes)
{
    if (file && bytes) {
        (void)fwrite(data, bytes, 1, file->out); /* ferror keeps what went wrong */
        XXH3_128bits_update(&file->hash, data, bytes);
        file->header.bytes += bytes;
    }
}

void qn_resume_finish(qn_resume_file *file, int whole, double rms)
{
    if (!file) {
        return;
    }
    qn_resume *r = file->resume;
    qn_error error = {0};
    file->header.rms = rms;
    const XXH128_hash_t sum = sum_of(&file->hash, &file->header);
    file->header.sum_high = sum.high64;
    file->header.sum_low = sum.low64;
    errno = 0;
    const int written = !ferror(file->out) && fseek(file->out, 0, SEEK_SET) == 0 &&
                        fwrite(&file->header, sizeof file->header, 1, file->out) == 1;
    const int why = errno;
    if ((fclose(file->out) != 0 || !written) && whole) {
        give_up(r, strerror(why ? why : errno));
    } else if (whole && qn_commit_finish(file->commit, &error) != QN_OK) {
        give_up(r, error.text);
    }
    qn_commit_destroy(file->commit);
    qn_free(r->ctx, file);
}
