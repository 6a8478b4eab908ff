/* The configuration object, shared by quant_config.c (what is common, and the
 * schemes with scales) and quant_config_vq.c (those with codebooks). */
#ifndef QN_IO_QUANT_CONFIG_INTERNAL_H
#define QN_IO_QUANT_CONFIG_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "io/quant_config.h"

typedef struct qn_name_pattern {
    const char *text;  /* a name, or NULL for a regular expression */
    pcre2_code *regex; /* "re:..." */
} qn_name_pattern;

typedef struct qn_name_patterns {
    qn_name_pattern *list;
    int32_t count;
} qn_name_patterns;

/* A group of compressed-tensors: its scheme and the modules it names. */
typedef struct qn_config_group {
    const qn_scheme *scheme;
    qn_name_patterns modules; /* none: all linear ones */
} qn_config_group;

struct qn_quant_config {
    const qn_ctx *ctx;
    json_t *json; /* keeps the names alive */
    const qn_scheme *scheme;
    qn_scheme own; /* where no row of the table has these sizes */
    char own_name[32];
    float resid_scale; /* quip_params' resid_scale_override; 0: the codebook's own */
    int rescale;       /* quip_params' rescale_WH */
    int32_t named_only; /* 1: modules that no group names are plain */
    qn_name_patterns ignore;
    qn_config_group *groups; /* those that name modules */
    int32_t group_count;
    pcre2_general_context *memory;
    pcre2_match_context *limits;
};

/* An array of names; "re:" entries are regular expressions when allowed. */
qn_status qn_quant_config_read_ignore(qn_quant_config *config, const char *key, int regex, qn_error *error);

/* aqlm, and gptvq in the same words; vptq; quip_params. */
qn_status qn_quant_config_parse_books(qn_quant_config *config, qn_scheme_layout layout, qn_error *error);
qn_status qn_quant_config_parse_vptq(qn_quant_config *config, qn_error *error);
qn_status qn_quant_config_parse_lattice(qn_quant_config *config, qn_error *error);

/* Their objects for a scheme of the table; NULL: out of memory. */
json_t *qn_quant_config_make_vq(const qn_scheme *scheme, const char *const *ignore, int32_t ignore_count);

#endif
