/* The passes over codes; the mathematics is in vq_fit.h. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "format/lattice.h"
#include "quant/vq_fit.h"

#define BAND QN_VQ_BAND
#define BLOCK 64 /* columns whose errors are spread to the others together */
#define MAX_BEAM 8
#define CANDIDATES 6 /* lattice points that are weighed by S, at most QN_FIT_LANES */
#define MAX_VECTOR 16
#define MAX_BOOKS 8

typedef struct pass {
    qn_vq_fit *fit;
    int feedback;
    float *scratch;
    size_t scratch_floats; /* a thread */
    double *losses;        /* a band; NULL: not asked for */
} pass;

/* A sum of vectors that is being put together. */
typedef struct member {
    float cost;
    uint16_t codes[MAX_BOOKS];
    float sum[MAX_VECTOR];
} member;

/* The rows of a band at one group. */
typedef struct spot {
    const qn_vq_fit *fit;
    const float *metric, *inverse; /* [v][v] */
    const float *table, *turned, *norms;
    int64_t rows;
    float *targets, *scores; /* [BAND * MAX_BEAM][v], [BAND * MAX_BEAM][lanes] */
    int32_t *entries;
    member *beam, *next; /* [BAND][MAX_BEAM] */
} spot;

/* The inverse of a symmetric, positive s[v][v]. */
static void invert(const float *s, int64_t v, float *out)
{
    double a[MAX_VECTOR][2 * MAX_VECTOR] = {{0}};
    for (int64_t i = 0; i < v; i++) {
        for (int64_t j = 0; j < v; j++) {
            a[i][j] = (double)s[i * v + j];
        }
        a[i][v + i] = 1;
    }
    for (int64_t i = 0; i < v; i++) {
        const double pivot = a[i][i] > 0 ? 1 / a[i][i] : 0;
        for (int64_t j = 0; j < 2 * v; j++) {
            a[i][j] *= pivot;
        }
        for (int64_t r = 0; r < v; r++) {
            const double factor = r == i ? 0 : a[r][i];
            for (int64_t j = 0; j < 2 * v && factor != 0; j++) {
                a[r][j] -= factor * a[i][j];
            }
        }
    }
    for (int64_t i = 0; i < v * v; i++) {
        out[i] = (float)a[i / v][v + i % v];
    }
}

static void metrics_task(void *user, int64_t g, int32_t thread)
{
    (void)thread;
    const pass *p = user;
    const qn_vq_fit *f = p->fit;
    const int64_t v = f->vector, first = g * v;
    for (int64_t i = 0; i < v; i++) {
        for (int64_t j = 0; j < v; j++) {
            float s = 0;
            for (int64_t l = 0; l < v && p->feedback; l++) {
                s += f->r[(first + i) * f->stride + first + l] * f->r[(first + j) * f->stride + first + l];
            }
            f->metric[(g * v + i) * v + j] = p->feedback ? s : f->h[(first + i) * f->stride + first + j];
        }
    }
    if (f->lattice) {
        invert(f->metric + g * v * v, v, f->inverse + g * v * v);
        return;
    }
    for (int64_t d = 0; d < f->down; d++) {
        const float *table = f->table + (d * f->across + f->across_of[g]) * qn_vq_cell_floats(f);
        float *norms = f->norms + (d * f->groups + g) * f->books * f->entries;
        for (int64_t e = 0; e < (int64_t)f->books * f->entries; e++) {
            float sum = 0;
            for (int64_t i = 0; i < v; i++) {
                float s = 0;
                for (int64_t j = 0; j < v; j++) {
                    s += f->metric[(g * v + i) * v + j] * table[e * v + j];
                }
                sum += s * table[e * v + i];
            }
            norms[e] = sum;
        }
    }
}

static void turn(qn_vq_fit *f)
{
    for (int64_t b = 0; b < f->down * f->across * f->books; b++) {
        const float *from = f->table + b * f->entries * f->vector;
        float *to = f->turned + b * f->entries * f->vector;
        for (int64_t e = 0; e < f->entries; e++) {
            for (int64_t j = 0; j < f->vector; j++) {
                to[j * f->entries + e] = from[e * f->vector + j];
            }
        }
    }
}

/* to = -2 (t - S sum) */
static void set_target(const spot *s, const float *t, const float *sum, float *to)
{
    const int32_t v = s->fit->vector;
    for (int32_t i = 0; i < v; i++) {
        float left = t[i];
        for (int32_t j = 0; j < v && sum; j++) {
            left -= s->metric[i * v + j] * sum[j];
        }
        to[i] = -2 * left;
    }
}

/* c S c^T of the vector c. */
static float norm_of(const spot *s, const float *c)
{
    const int32_t v = s->fit->vector;
    float sum = 0;
    for (int32_t i = 0; i < v; i++) {
        float m = 0;
        for (int32_t j = 0; j < v; j++) {
            m += s->metric[i * v + j] * c[j];
        }
        sum += m * c[i];
    }
    return sum;
}

/* out = x m, the symmetric m[8][8]. */
static void times_8(const float *x, const float *m, float out[8])
{
    memset(out, 0, 8 * sizeof *out);
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            out[j] += x[i] * m[i * 8 + j];
        }
    }
}

/* One point a lane, the nearest to S^-1 t; those of the nearest lanes get their score by S, the others none. */
static void search_lattice(const spot *s, int32_t book, int64_t count)
{
    const qn_vq_fit *f = s->fit;
    const float *table = s->table + (int64_t)book * f->entries * 8;
    for (int64_t r = 0; r < count; r++) {
        const float *target = s->targets + r * 8;
        float x[8], image[8], *scores = s->scores + r * QN_FIT_LANES;
        int32_t *entries = s->entries + r * QN_FIT_LANES;
        times_8(target, s->inverse, x);
        for (int i = 0; i < 8; i++) {
            x[i] *= -0.5f / f->sizes[book];
        }
        f->set->nearest_e8p(f->lattice, x, 1, scores, entries);
        for (int i = 0; i < CANDIDATES; i++) { /* to the front, nearest first */
            int best = i;
            for (int l = i + 1; l < QN_FIT_LANES; l++) {
                best = scores[l] < scores[best] ? l : best;
            }
            const int32_t entry = entries[best];
            scores[best] = scores[i];
            entries[best] = entries[i];
            entries[i] = (int32_t)qn_e8p_encode((uint32_t)entry & 255, entry >> 8, x);
            const float *c = table + (int64_t)entries[i] * 8;
            times_8(c, s->metric, image);
            scores[i] = 0;
            for (int j = 0; j < 8; j++) {
                scores[i] += (target[j] + image[j]) * c[j];
            }
        }
        for (int l = CANDIDATES; l < QN_FIT_LANES; l++) {
            scores[l] = INFINITY;
        }
    }
}

static void search(const spot *s, int32_t book, int64_t count)
{
    const qn_vq_fit *f = s->fit;
    if (f->lattice) {
        search_lattice(s, book, count);
        return;
    }
    const qn_fit_book b = {s->norms + book * f->entries, s->turned + (int64_t)book * f->entries * f->vector, f->entries,
                           f->vector};
    f->set->nearest(&b, s->targets, count, s->scores, s->entries);
}

static void extend(const spot *s, const member *from, int32_t book, int32_t entry, float cost, member *to)
{
    const qn_vq_fit *f = s->fit;
    const float *vector = s->table + ((int64_t)book * f->entries + entry) * f->vector;
    *to = *from;
    to->cost = cost;
    to->codes[book] = (uint16_t)entry;
    for (int32_t j = 0; j < f->vector; j++) {
        to->sum[j] += vector[j];
    }
}

/* The `keep` least of members x lanes of a row, as members of the next book. */
static void keep_best(const spot *s, int64_t row, int32_t book, int32_t members, int32_t keep)
{
    const member *from = s->beam + row * MAX_BEAM;
    float *scores = s->scores + row * members * QN_FIT_LANES;
    const int32_t *entries = s->entries + row * members * QN_FIT_LANES, all = members * QN_FIT_LANES;
    for (int32_t i = 0; i < all; i++) {
        scores[i] += from[i / QN_FIT_LANES].cost;
    }
    for (int32_t i = 0; i < keep; i++) {
        int32_t best = 0;
        for (int32_t c = 1; c < all; c++) {
            best = scores[c] < scores[best] || (scores[c] == scores[best] && entries[c] < entries[best]) ? c : best;
        }
        extend(s, &from[best / QN_FIT_LANES], book, entries[best], scores[best], &s->next[row * MAX_BEAM + i]);
        scores[best] = INFINITY;
    }
}

/* Each book's vector again with the others as they are, for all rows. */
static void polish(const spot *s, const float *t)
{
    const qn_vq_fit *f = s->fit;
    const int32_t v = f->vector;
    for (int32_t i = 0; i < f->polish * f->books; i++) {
        const int32_t book = i % f->books;
        for (int64_t r = 0; r < s->rows; r++) {
            member *m = &s->beam[r * MAX_BEAM], *without = &s->next[r * MAX_BEAM];
            const int64_t old = (int64_t)book * f->entries + m->codes[book];
            *without = *m;
            float dot = 0;
            for (int32_t j = 0; j < v; j++) {
                without->sum[j] -= s->table[old * v + j];
            }
            set_target(s, t + r * v, without->sum, s->targets + r * v);
            for (int32_t j = 0; j < v; j++) {
                dot += s->targets[r * v + j] * s->table[old * v + j];
            }
            const float norm = f->lattice ? norm_of(s, s->table + old * v) : s->norms[old];
            without->cost = m->cost - (norm + dot);
        }
        search(s, book, s->rows);
        for (int64_t r = 0; r < s->rows; r++) {
            const float *scores = s->scores + r * QN_FIT_LANES;
            int best = 0;
            for (int l = 1; l < QN_FIT_LANES; l++) {
                best = scores[l] < scores[best] ? l : best;
            }
            member *m = &s->beam[r * MAX_BEAM], *without = &s->next[r * MAX_BEAM];
            if (without->cost + scores[best] < m->cost) {
                extend(s, without, book, s->entries[r * QN_FIT_LANES + best], without->cost + scores[best], m);
            }
        }
    }
}

/* The first member of each row's beam becomes the best sum for targets t[rows][v]. */
static void choose(spot *s, const float *t)
{
    const qn_vq_fit *f = s->fit;
    const int32_t v = f->vector;
    int32_t members = 1;
    for (int64_t r = 0; r < s->rows; r++) {
        memset(&s->beam[r * MAX_BEAM], 0, sizeof *s->beam);
    }
    for (int32_t book = 0; book < f->books; book++) {
        const int32_t keep = book == f->books - 1 ? 1 : f->beam;
        for (int64_t i = 0; i < s->rows * members; i++) {
            const int64_t row = i / members;
            set_target(s, t + row * v, book ? s->beam[row * MAX_BEAM + i % members].sum : NULL, s->targets + i * v);
        }
        search(s, book, s->rows * members);
        for (int64_t r = 0; r < s->rows; r++) {
            keep_best(s, r, book, members, keep);
        }
        member *swap = s->beam;
        s->beam = s->next;
        s->next = swap;
        members = keep;
    }
    if (f->books > 1) {
        polish(s, t);
    }
}

/* Cost of the vector u for target t. */
static float cost_of(const spot *s, const float *t, const float *u)
{
    const int32_t v = s->fit->vector;
    float sum = 0;
    for (int32_t i = 0; i < v; i++) {
        float m = -2 * t[i];
        for (int32_t j = 0; j < v; j++) {
            m += s->metric[i * v + j] * u[j];
        }
        sum += m * u[i];
    }
    return sum;
}

/* One group of a band: choose, set q and codes; step[r][column]: what the group adds to what is spread. */
static void settle(const pass *p, spot *s, int64_t first, int64_t g, const float *spread, float *step)
{
    qn_vq_fit *f = p->fit;
    const int64_t v = f->vector, c = g * v;
    float t[BAND * MAX_VECTOR];
    for (int64_t r = 0; r < s->rows; r++) {
        const float *w = f->w + (first + r) * f->stride + c, *q = f->q + (first + r) * f->stride + c;
        const float *base = p->feedback ? w : q, *a = spread + r * f->stride + c;
        const float inverse = 1 / f->scales[first + r];
        for (int64_t i = 0; i < v; i++) {
            float sum = p->feedback ? 0 : -a[i];
            for (int64_t j = 0; j < v; j++) {
                sum += s->metric[i * v + j] * base[j];
                sum -= p->feedback ? f->r[(c + i) * f->stride + c + j] * a[j] : 0;
            }
            t[r * v + i] = sum * inverse;
        }
    }
    choose(s, t);
    for (int64_t r = 0; r < s->rows; r++) {
        const member *m = &s->beam[r * MAX_BEAM];
        const float scale = f->scales[first + r], *w = f->w + (first + r) * f->stride + c;
        float *q = f->q + (first + r) * f->stride + c, *to = step + r * BLOCK + c % BLOCK;
        uint16_t *codes = f->codes + ((first + r) * f->groups + g) * f->books;
        float old[MAX_VECTOR];
        for (int64_t j = 0; j < v; j++) {
            old[j] = q[j] / scale;
        }
        if (!p->feedback && cost_of(s, t + r * v, m->sum) >= cost_of(s, t + r * v, old)) {
            memset(to, 0, (size_t)v * sizeof *to);
            continue;
        }
        for (int64_t j = 0; j < v; j++) {
            const float now = scale * m->sum[j];
            to[j] = now - (p->feedback ? w[j] : q[j]);
            q[j] = now;
        }
        memcpy(codes, m->codes, (size_t)f->books * sizeof *codes);
    }
}

static double band_loss(const qn_vq_fit *f, int64_t first, int64_t rows, float *d, float *product)
{
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < f->stride; j++) {
            d[r * f->stride + j] = f->q[(first + r) * f->stride + j] - f->w[(first + r) * f->stride + j];
        }
    }
    memset(product, 0, (size_t)(BAND * f->stride) * sizeof *product);
    f->set->add_product(product, f->stride, d, f->stride, rows, f->h, f->stride, f->k, f->stride);
    for (int64_t i = 0; i < rows * f->stride; i++) {
        loss += (double)d[i] * (double)product[i];
    }
    return loss;
}

static void band_task(void *user, int64_t band, int32_t thread)
{
    const pass *p = user;
    const qn_vq_fit *f = p->fit;
    const int64_t first = band * BAND, v = f->vector;
    float *spread = p->scratch + (size_t)thread * p->scratch_floats, *d = spread + BAND * f->stride;
    spot s = {.fit = f, .rows = qn_min_i64(BAND, f->n - first)};
    s.targets = d + BAND * f->stride;
    s.scores = s.targets + BAND * MAX_BEAM * MAX_VECTOR;
    s.entries = (int32_t *)(void *)(s.scores + BAND * MAX_BEAM * QN_FIT_LANES);
    s.beam = (member *)(void *)(s.entries + BAND * MAX_BEAM * QN_FIT_LANES);
    s.next = s.beam + BAND * MAX_BEAM;
    const float *matrix = p->feedback ? f->r : f->h;
    memset(spread, 0, (size_t)(BAND * f->stride) * sizeof *spread);
    if (!p->feedback) {
        (void)band_loss(f, first, s.rows, d, spread);
    }
    for (int64_t c = 0; c < f->k; c += BLOCK) {
        const int64_t end = qn_min_i64(c + BLOCK, f->k), line_end = qn_min_i64(c + BLOCK, f->stride);
        float step[BAND * BLOCK] = {0};
        for (int64_t g = c / v; g < end / v; g++) {
            const int64_t cell = qn_vq_cell(f, first, g);
            s.metric = f->metric + g * v * v;
            s.inverse = f->lattice ? f->inverse + g * v * v : NULL;
            s.table = f->table + cell * qn_vq_cell_floats(f);
            if (!f->lattice) {
                s.turned = f->turned + cell * qn_vq_cell_floats(f);
                s.norms = f->norms + (first / f->cell_rows * f->groups + g) * f->books * f->entries;
            }
            settle(p, &s, first, g, spread, step);
            f->set->add_product(spread + c, f->stride, step + g * v % BLOCK, BLOCK, s.rows,
                                matrix + g * v * f->stride + c, f->stride, v, line_end - c);
        }
        if (!p->feedback) {
            f->set->add_product(spread, f->stride, step, BLOCK, s.rows, matrix + c * f->stride, f->stride, end - c, c);
        }
        f->set->add_product(spread + line_end, f->stride, step, BLOCK, s.rows, matrix + c * f->stride + line_end,
                            f->stride, end - c, f->stride - line_end);
    }
    if (p->losses) {
        p->losses[band] = band_loss(f, first, s.rows, d, spread);
    }
}

qn_status qn_vq_pass(qn_vq_fit *f, int feedback, double *loss, qn_error *error)
{
    QN_FAIL_IF(f->vector > MAX_VECTOR || f->books > MAX_BOOKS || f->beam > MAX_BEAM || BLOCK % f->vector, error,
               QN_E_UNSUPPORTED, "vectors of %d from %d books are not supported", f->vector, f->books);
    const int64_t bands = qn_ceil_div(f->n, BAND);
    pass p = {.fit = f, .feedback = feedback};
    p.scratch_floats = (size_t)(2 * BAND * f->stride) + BAND * MAX_BEAM * (MAX_VECTOR + 2 * QN_FIT_LANES) +
                       2 * BAND * MAX_BEAM * (sizeof(member) / sizeof(float));
    p.scratch = qn_calloc(f->ctx, p.scratch_floats * (size_t)qn_exec_threads(f->exec), sizeof(float));
    p.losses = loss ? qn_calloc(f->ctx, (size_t)bands + 1, sizeof(double)) : NULL;
    const int failed = !p.scratch || (loss && !p.losses);
    if (!failed) {
        if (!f->lattice) {
            turn(f);
        }
        qn_parallel_for(f->exec, f->groups, metrics_task, &p);
        qn_parallel_for(f->exec, bands, band_task, &p);
        for (int64_t b = 0; b < bands && loss; b++) {
            *loss = (b ? *loss : 0) + p.losses[b];
        }
    }
    qn_free(f->ctx, p.losses);
    qn_free(f->ctx, p.scratch);
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)f->n,
               (long long)f->k);
    return QN_OK;
}
