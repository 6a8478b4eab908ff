/* The generator's decision as text. */
#include "vq/generator.h"

const char *qn_vq_level_name(qn_vq_level level)
{
    static const char *const names[] = {"auto", "gc", "sc", "o1", "o2", "o3", "o4"};
    return (unsigned)level < sizeof names / sizeof *names ? names[level] : "none";
}

const char *qn_vq_form_name(qn_vq_form form)
{
    static const char *const names[] = {"direct", "partial sums", "tensor", "written out"};
    return (unsigned)form < sizeof names / sizeof *names ? names[form] : "none";
}

static const char *fusion_name(qn_vq_fusion fusion)
{
    static const char *const names[] = {"none", "shared memory", "shuffles", "permuted K"};
    return names[fusion];
}

static const char *scope_name(qn_vq_scope scope)
{
    static const char *const names[] = {"model", "tensor", "tile", "channel group"};
    return names[scope];
}

/* What the prediction is the longest of. */
static const char *bound_of(const qn_vq_choice *c)
{
    const char *name = "memory";
    double most = c->memory_us;
    if (c->lookup_us > most) {
        most = c->lookup_us;
        name = "lookups";
    }
    if (c->issue_us > most) {
        most = c->issue_us;
        name = "instructions";
    }
    return c->math_us > most ? "multiply-adds" : name;
}

void qn_vq_explain(const qn_vq_problem *p, const qn_vq_device *d, qn_text *text)
{
    qn_vq_choice list[QN_VQ_CANDIDATES];
    const int32_t count = qn_vq_candidates(p, d, list);
    const qn_vq_choice *c = &list[0];
    qn_text_add(text, "generator: VQ<%d,%d,%d>, codes of %d bits, a codebook per %s, on %s\n", p->vector, p->bits,
                p->books, p->stored_bits, scope_name(p->scope), d->name);
    if (d->cpu) {
        qn_text_add(text, "  the kernels of a CPU are not generated: %s; the figures are the model's\n",
                    p->use == QN_VQ_USE_MM ? "gc, sc and o1 read tables from memory, o2 to o4 from registers where a "
                                             "format's fit, auto may also take partial sums"
                                           : "the same one runs whatever the level");
    }
    qn_text_add(text, "  level %s, form %s, fusion %s\n", qn_vq_level_name(c->level), qn_vq_form_name(c->form),
                fusion_name(c->fusion));
    qn_text_add(text, "  entries of a book: %d in registers, %d in %s x %d, %d in %s; %d bytes of tables a %s\n",
                c->register_entries, c->shared_entries, d->cpu ? "L1" : "shared memory", c->copies, c->global_entries,
                d->cpu ? "L2" : "global memory", c->shared_bytes, d->cpu ? "core" : "block");
    if (c->slices > 1 && c->form == QN_VQ_FORM_SUMS) {
        qn_text_add(text, "  %d slices of the book, a block makes the products of one, which a cluster exchanges\n",
                    c->slices);
    } else if (c->slices > 1) {
        qn_text_add(text, "  %d slices of the book, a block keeps one and passes over the codes of the others\n",
                    c->slices);
    }
    qn_text_add(text, "  split %d, rows a decoding serves %d, occupancy %.0f %%\n", c->split, c->row_tile,
                100.0 * c->occupancy);
    qn_text_add(text, "  predicted: %.0f bytes, %.0f lookups, %.2f accesses a conflict-free one, %.2f us\n", c->bytes,
                c->lookups, c->conflicts, c->us);
    qn_text_add(text, "  %-5s %-13s %9s %9s %9s %9s %9s %9s %9s  %s\n", "level", "form", "memory", "lookups", "issue",
                "math", "fill", "reduce", "us", "bound by");
    for (int32_t i = 0; i < count; i++) {
        c = &list[i];
        qn_text_add(text, "  %-5s %-13s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f  %s\n", qn_vq_level_name(c->level),
                    qn_vq_form_name(c->form), c->memory_us, c->lookup_us, c->issue_us, c->math_us, c->fill_us,
                    c->reduce_us, c->us, bound_of(c));
    }
}
