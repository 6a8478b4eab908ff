/* Assembling vector-quantised modules: all tensors of one, under the names that
 * the operators have for them too, held against the configuration and, by the
 * operator's own rules, against each other. What codes mean is not looked at here: the
 * operator does so when a weight is packed. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/format.h"
#include "format/lattice.h"
#include "io/checkpoint_internal.h"

static const char fuse_scales[] = "fuse_scales"; /* a factor for each layer that is fused, no tensor of the operators */

/* Place of a tensor among those of the scheme; -1: none of them. *length: of the module's name. */
static int find_place(const qn_scheme *s, const char *name, size_t *length)
{
    const size_t all = strlen(name);
    for (int i = 0; s->vq.tensors[i]; i++) {
        const size_t bytes = strlen(s->vq.tensors[i]);
        if (all > bytes + 1 && name[all - bytes - 1] == '.' && strcmp(name + all - bytes, s->vq.tensors[i]) == 0) {
            *length = all - bytes - 1;
            return i;
        }
    }
    return -1;
}

/* A number without dimensions is a vector of one. */
static qn_view part_view(const qn_file_tensor *t)
{
    if (t->view.shape.ndim) {
        return t->view;
    }
    const qn_shape one = qn_shape_make(t->view.shape.format, 1, 1, 1, 1, 1);
    return qn_view_make(t->view.data, &one);
}

/* Rows of the layers that a fused module holds; 0: it is none. */
static int fused_rows(const qn_checkpoint *c, const char *module, int64_t rows[3])
{
    const qn_hparams *h = &c->hparams;
    const size_t length = strlen(module);
    if (length > 9 && strcmp(module + length - 9, ".qkv_proj") == 0) {
        rows[0] = (int64_t)h->heads * h->head_dim;
        rows[1] = rows[2] = (int64_t)h->kv_heads * h->head_dim;
        return 3;
    }
    if (length > 12 && strcmp(module + length - 12, ".upgate_proj") == 0) {
        rows[0] = rows[1] = h->intermediate;
        return 2;
    }
    return 0;
}

/* SV times the factors of the layers that its rows belong to. */
static qn_status fold_scales(qn_checkpoint *c, const char *module, const qn_file_tensor *scales, qn_view *sv,
                             qn_error *error)
{
    int64_t rows[3] = {0}, all = 0;
    float factors[3] = {1, 1, 1};
    const int layers = fused_rows(c, module, rows);
    const qn_shape *s = &scales->view.shape;
    const qn_format format = s->format;
    for (int i = 0; i < layers; i++) {
        all += rows[i];
    }
    QN_FAIL_IF(!layers, error, QN_E_UNSUPPORTED, "tensor %s: its module is none that is known to be fused",
               scales->name);
    QN_FAIL_IF(s->ndim != 1 || s->dims[0] != layers || (format != QN_F32 && format != QN_F16 && format != QN_BF16),
               error, QN_E_FILE, "tensor %s is not %d floats, one for each fused layer", scales->name, layers);
    QN_FAIL_IF(sv->shape.ndim != 1 || sv->shape.dims[0] != all, error, QN_E_FILE,
               "%s has an SV of %" PRId64 " elements, the hyperparameters say %" PRId64, module, sv->shape.dims[0],
               all);
    const qn_format_row *codec = qn_format_get_row(sv->shape.format);
    float *folded = qn_checkpoint_own(c, (size_t)all, sizeof *folded);
    QN_FAIL_IF(!folded, error, QN_E_MEMORY, "out of memory for %s", module);
    QN_FAIL_IF(!codec || !codec->decode || codec->info.block_elements != 1, error, QN_E_FILE,
               "%s has an SV in the format %s", module, codec ? codec->info.name : "none");
    codec->decode(sv->data, all, folded);
    qn_format_get_row(format)->decode(scales->view.data, layers, factors);
    for (int64_t i = 0, layer = 0, end = rows[0]; i < all; i++) {
        while (i == end) {
            end += rows[++layer];
        }
        folded[i] *= factors[layer];
    }
    const qn_shape shape = qn_shape_make(QN_F32, 1, all, 1, 1, 1);
    *sv = qn_view_make(folded, &shape);
    return QN_OK;
}

/* The parts of a module as an operator's inputs: their sizes, or what does not fit. */
static qn_status check_parts(const qn_weight *w, const char *module, const qn_vq_module *said, qn_sizes *sizes,
                             qn_error *error)
{
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_op_desc_init(&desc, QN_OP_VQ_DEQUANTIZE);
    desc.attr[QN_ATTR_FORMAT] = said->attr[QN_ATTR_FORMAT];
    for (int a = QN_ATTR_NUM_CODEBOOKS; a <= QN_ATTR_OUT_FEATURES; a++) {
        desc.attr[a] = said->attr[a];
    }
    for (int32_t i = 0; i < w->part_count; i++) {
        desc.in[qn_op_in_slot(QN_OP_VQ_DEQUANTIZE, w->parts[i].name)] = w->parts[i].view.shape;
    }
    for (int32_t i = 1; i < w->part_count && w->scheme->vq.format == QN_VQ_QUIP_E8P; i++) {
        const int64_t length = w->parts[i].view.shape.dims[0];
        const int transformed = strcmp(w->parts[i].name, "SU") == 0 || strcmp(w->parts[i].name, "SV") == 0;
        QN_FAIL_IF(transformed && length > 0 && !qn_hadamard_base(length), error, QN_E_UNSUPPORTED,
                   "%s: no Hadamard transform of length %" PRId64 " is known", module, length);
    }
    const qn_status status = qn_op_desc_check(&desc, out, sizes, error);
    if (status != QN_OK) {
        return qn_error_prefix(error, status == QN_E_MEMORY ? status : QN_E_FILE, "%s", module);
    }
    QN_FAIL_IF(sizes->n < 1 || sizes->k < 1, error, QN_E_FILE, "%s is a weight of %" PRId64 " x %" PRId64, module,
               sizes->n, sizes->k);
    return QN_OK;
}

/* The module whose codes are t. */
static qn_status add_module(qn_checkpoint *c, const qn_file_tensor *t, size_t length, qn_error *error)
{
    const qn_scheme *s = qn_quant_config_scheme(c->quant);
    char *module = qn_checkpoint_own_text(c, t->name, length);
    qn_weight_part *parts = qn_checkpoint_own(c, sizeof s->vq.tensors / sizeof *s->vq.tensors, sizeof *parts);
    qn_weight w = {.scheme = s, .ndim = 2, .parts = parts};
    w.name = qn_checkpoint_part_name(c, t->name, length, "weight");
    const int ignored = module && parts && w.name ? qn_quant_config_ignores(c->quant, module) : -1;
    QN_FAIL_IF(ignored < 0, error, QN_E_MEMORY, "out of memory for tensor names");
    QN_FAIL_IF(ignored, error, QN_E_FILE, "%s is quantised although quantization_config leaves it out", module);
    qn_vq_module said;
    QN_TRY(qn_quant_config_module(c->quant, module, &said, error));
    const qn_file_tensor *scales = NULL;
    qn_view *sv = NULL;
    for (int i = 0; s->vq.tensors[i]; i++) {
        const char *name = s->vq.tensors[i];
        qn_status status = QN_OK;
        const qn_file_tensor *part = qn_checkpoint_find_part(c, t->name, length, name, &status, error);
        QN_TRY(status);
        QN_FAIL_IF(!part && (said.needed >> i & 1), error, QN_E_FILE, "tensor %s has no %s beside it", t->name, name);
        QN_FAIL_IF(part && !(said.allowed >> i & 1), error, QN_E_FILE,
                   "tensor %s is there although the configuration says nothing of it", part->name);
        if (part && strcmp(name, fuse_scales) == 0) {
            scales = part;
        } else if (part) {
            sv = strcmp(name, "SV") == 0 ? &parts[w.part_count].view : sv;
            parts[w.part_count++] = (qn_weight_part){name, part_view(part)};
        }
    }
    if (scales && sv) {
        QN_TRY(fold_scales(c, module, scales, sv, error));
    }
    qn_sizes sizes;
    QN_TRY(check_parts(&w, module, &said, &sizes, error));
    w.n = sizes.n;
    w.k = sizes.k;
    w.data = parts[0].view;
    if (s->vq.format == QN_VQ_VPTQ || said.attr[QN_ATTR_RESID_SCALE].f != 0.0f) {
        qn_attr_value *attr = qn_checkpoint_own(c, QN_ATTR_COUNT, sizeof *attr);
        QN_FAIL_IF(!attr, error, QN_E_MEMORY, "out of memory for %s", module);
        memcpy(attr, said.attr, sizeof said.attr);
        w.attr = attr;
    }
    return qn_checkpoint_add_weight(c, &w, error);
}

qn_status qn_checkpoint_assemble_vq(qn_checkpoint *c, const qn_file_tensor *t, int *taken, qn_error *error)
{
    const qn_scheme *s = c->quant ? qn_quant_config_scheme(c->quant) : NULL;
    size_t length = 0;
    const int place = s ? find_place(s, t->name, &length) : -1;
    *taken = place >= 0;
    if (place < 0) {
        return QN_OK;
    }
    if (place == 0) {
        return add_module(c, t, length, error);
    }
    qn_status status = QN_OK;
    const qn_file_tensor *codes = qn_checkpoint_find_part(c, t->name, length, s->vq.tensors[0], &status, error);
    QN_TRY(status);
    QN_FAIL_IF(!codes, error, QN_E_FILE, "tensor %s has no %s beside it", t->name, s->vq.tensors[0]);
    return QN_OK;
}
